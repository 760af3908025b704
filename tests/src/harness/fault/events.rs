//! The events of one watch, passed on line by line.

use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::sync::mpsc;

use super::script::{Asked, Event, EventFault, status};
use super::serve::Body;
use super::{Seen, Shared, lock};

type Frames = mpsc::Sender<anyhow::Result<Frame<Bytes>>>;

/// The body of the answer to the agent.
pub(super) fn pass(shared: Arc<Shared>, asked: Asked, from: Incoming) -> Body {
    let (to, frames) = mpsc::channel(16);
    tokio::spawn(Passing { shared, asked, from, to, line: BytesMut::new(), held: None }.run());
    let frames = stream::unfold(frames, async |mut frames| Some((frames.recv().await?, frames)));
    StreamBody::new(frames).boxed_unsync()
}

struct Passing {
    shared: Arc<Shared>,
    asked: Asked,
    from: Incoming,
    to: Frames,
    /// What came of a line.
    line: BytesMut,
    /// An event that waits for the next one to pass.
    held: Option<Bytes>,
}

/// How the stream goes on after an event.
enum Next {
    Event,
    /// The chunks end as they should.
    End,
    /// The connection ends.
    Cut,
    Stall,
}

impl Passing {
    async fn run(mut self) {
        match self.events().await {
            Next::Event | Next::End => {}
            Next::Cut => {
                // The agent may be gone.
                let _ = self.to.send(Err(anyhow::anyhow!("a fault of the test"))).await;
            }
            Next::Stall => self.swallow().await,
        }
    }

    async fn events(&mut self) -> Next {
        let mut state = self.shared.state.subscribe();
        let begin = *state.borrow_and_update();
        loop {
            let frame = tokio::select! {
                frame = self.from.frame() => frame,
                () = self.to.closed() => return Next::End,
                changed = state.wait_for(|now| {
                    now.watch_cuts != begin.watch_cuts || now.stalls != begin.stalls
                }) => match changed {
                    Ok(now) if now.stalls != begin.stalls => return Next::Stall,
                    _ => return Next::Cut,
                },
            };
            match frame {
                Some(Ok(frame)) => self.line.extend_from_slice(&frame.into_data().unwrap_or_default()),
                Some(Err(_)) => return Next::Cut,
                None => {
                    self.release().await;
                    return Next::End;
                }
            }
            while let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
                let line = self.line.split_to(end + 1).freeze();
                let next = self.event(line).await;
                if !matches!(next, Next::Event) {
                    return next;
                }
            }
        }
    }

    async fn event(&mut self, line: Bytes) -> Next {
        let text = String::from_utf8_lossy(&line);
        let fault = (lock(&self.shared.on_event))(&self.asked, Event::of(&text));
        match fault {
            EventFault::None => self.say(line).await,
            EventFault::Skip => {}
            EventFault::Duplicate => {
                self.say(line.clone()).await;
                self.say(line).await;
            }
            EventFault::Swap => {
                self.release().await;
                self.held = Some(line);
                return Next::Event;
            }
            EventFault::Delay(delay) => {
                tokio::time::sleep(delay).await;
                self.say(line).await;
            }
            EventFault::HalfLine => {
                self.say(line.slice(..line.len() / 2)).await;
                return Next::Cut;
            }
            EventFault::Garbage => {
                self.say(Bytes::from_static(b"{\"type\":\"MODIFIED\",\"object\":{]\n")).await
            }
            EventFault::Gone => {
                self.say(format!("{{\"type\":\"ERROR\",\"object\":{}}}\n", status(410)).into()).await;
                return Next::End;
            }
            EventFault::Cut => return Next::Cut,
            EventFault::End => return Next::End,
            EventFault::Stall => return Next::Stall,
        }
        self.release().await;
        Next::Event
    }

    async fn release(&mut self) {
        if let Some(held) = self.held.take() {
            self.say(held).await;
        }
    }

    async fn say(&self, bytes: Bytes) {
        // An agent that is gone is noticed where the next frame is waited for.
        let _ = self.to.send(Ok(Frame::data(bytes))).await;
    }

    /// Reads on, as the buffers of a dead path would for a while, until the agent has gone or everything is cut.
    async fn swallow(&mut self) {
        loop {
            tokio::select! {
                frame = self.from.frame() => if !matches!(frame, Some(Ok(_))) { break },
                () = self.to.closed() => break,
            }
        }
        self.to.closed().await;
        let abandoned = Seen { at: Instant::now(), asked: self.asked.clone() };
        lock(&self.shared.abandoned).push(abandoned);
    }
}
