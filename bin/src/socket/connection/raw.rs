//! A connection after `acp/attach`: lines in both directions, unread and unchanged.

use std::io;
use std::time::Duration;

use holdfast_actors::channel::{Carried, Frame, FrameReceiver, FrameTooLong, Sender};
use holdfast_protocol::framing::{LineBuffer, LineTooLong};
use tokio::net::UnixStream;

use super::writer::Writer;
use super::{Stop, hung_up, read_now};

/// Frames taken from the queue at once.
const FRAMES_MAX: usize = 64;

type Incoming = Sender<Result<Vec<u8>, FrameTooLong>>;

/// Carries frames until the service has let go of the channel, the client is gone, or the time to finish is over.
pub(super) async fn serve(
    stream: &UnixStream,
    lines: LineBuffer,
    incoming: Incoming,
    mut outgoing: FrameReceiver,
    mut writer: Writer,
    mut stop: Stop,
    finish: Duration,
) -> io::Result<()> {
    let write = write(stream, &mut outgoing, &mut writer);
    let read = async {
        tokio::select! {
            outcome = read(stream, lines, incoming) => outcome,
            () = stop.asked() => Ok(Reading::Stopped),
        }
    };
    tokio::pin!(write, read);
    let reading = tokio::select! {
        written = &mut write => return written,
        reading = &mut read => reading?,
    };
    match reading {
        // The client may have closed only its sending half; what the service still says has to reach it.
        Reading::ClientDone => write.await,
        Reading::ClientGone => Ok(()),
        Reading::Stopped => tokio::time::timeout(finish, write).await.unwrap_or(Ok(())),
    }
}

enum Reading {
    /// The client sends no more.
    ClientDone,
    /// The client neither sends nor reads.
    ClientGone,
    /// The daemon is stopping.
    Stopped,
}

async fn read(stream: &UnixStream, mut lines: LineBuffer, incoming: Incoming) -> io::Result<Reading> {
    loop {
        while let Some(line) = lines.next_line() {
            let frame = owned(line);
            // Waits while the service is behind. A service that no longer listens ends the channel by its own half.
            if incoming.push(frame).await.is_err() {
                return Ok(Reading::ClientDone);
            }
        }
        stream.readable().await?;
        match read_now(stream, lines.spare_mut())? {
            None => {}
            Some(0) => break,
            Some(count) => lines.advance(count),
        }
    }
    if let Some(line) = lines.finish() {
        // As above.
        let _unheard = incoming.push(owned(line)).await;
    }
    Ok(if hung_up(stream) { Reading::ClientGone } else { Reading::ClientDone })
}

fn owned(line: Result<&[u8], LineTooLong>) -> Result<Vec<u8>, FrameTooLong> {
    line.map(<[u8]>::to_vec).map_err(|error| FrameTooLong { limit_bytes: error.limit_bytes })
}

async fn write(stream: &UnixStream, outgoing: &mut FrameReceiver, writer: &mut Writer) -> io::Result<()> {
    let mut frames: Vec<Carried<Frame>> = Vec::new();
    loop {
        while !writer.is_empty() {
            if writer.write_now(stream)? == 0 {
                stream.writable().await?;
            }
        }
        if outgoing.recv_many(&mut frames, FRAMES_MAX).await == 0 {
            return Ok(());
        }
        frames.drain(..).for_each(|frame| writer.append_frame(frame));
    }
}
