-- An agent names its own updates with a leading underscore, just as it names its own methods. So what a row holds is
-- told by its method, not by its kind. NULL: `session/update`, by far the most.
ALTER TABLE acp_update ADD COLUMN method TEXT;

-- Rows from before: without a discriminator it was another notification, whose method was kept as the kind.
UPDATE acp_update SET method = kind
WHERE CASE WHEN json_valid(params_json) THEN params_json ->> '$.update.sessionUpdate' IS NULL ELSE FALSE END;
