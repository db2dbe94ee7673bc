// Drives an ACP agent with the TypeScript SDK and prints what it saw as one JSON object.
// Usage: ACP_SDK=PATH node sdk_client.mjs CWD COMMAND [ARGUMENT...]
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";

const acp = await import(process.env.ACP_SDK);
const [cwd, command, ...args] = process.argv.slice(2);
const agent = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });

const updates = [];
const questions = [];
const take = () => updates.splice(0);
const refused = (error) => ({ code: error.code, message: error.message, data: error.data });

const seen = await acp
  .client({ name: "holdfast-interop" })
  .onNotification(acp.methods.client.session.update, ({ params }) => void updates.push(params))
  .onRequest(acp.methods.client.session.requestPermission, ({ params }) => {
    questions.push(params);
    return { outcome: { outcome: "selected", optionId: params.options[0].optionId } };
  })
  .connectWith(acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout)), async (ctx) => {
    const { session } = acp.methods.agent;
    const initialized = await ctx.request(acp.methods.agent.initialize, { protocolVersion: acp.PROTOCOL_VERSION });
    const created = await ctx.request(session.new, { cwd, mcpServers: [] });
    const { sessionId } = created;
    const prompt = [{ type: "text", text: "permission" }];
    const prompted = await ctx.request(session.prompt, { sessionId, prompt });
    const live = take();
    const listed = await ctx.request(session.list, {});
    const loaded = await ctx.request(session.load, { sessionId, cwd, mcpServers: [] });
    const replayed = take();
    const closed = await ctx.request(session.close, { sessionId });
    const unknown = await ctx.request("_x/unknown", { sessionId }).catch(refused);
    const missing = await ctx.request(session.load, { sessionId: "none", cwd, mcpServers: [] }).catch(refused);
    return { initialized, created, prompted, live, listed, loaded, replayed, closed, unknown, missing };
  });
console.log(JSON.stringify({ ...seen, questions }));
agent.stdin.end();
