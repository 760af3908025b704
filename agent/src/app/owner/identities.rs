//! What the thread of identities is told, in order and whole. It never holds the owner up; where it is far behind, the
//! owner takes nothing new from the sources.

use std::future::pending;

use portway_model::k8s::Event;
use tokio::sync::mpsc;

use crate::identities::{Synced, Told, is_of_matter};

/// Batches under way; one is what came while the one before waited.
const BATCHES: usize = 2;
/// Events that may wait: a few pages of a list.
const WAITING: usize = 8192;

/// The owner's end of the channel.
pub(in crate::app) struct ToIdentities {
    to: mpsc::Sender<Told>,
    waiting: Vec<Event>,
    synced: Synced,
    /// Something waits.
    is_news: bool,
}

impl ToIdentities {
    pub(in crate::app) fn new() -> (Self, mpsc::Receiver<Told>) {
        let (to, told) = mpsc::channel(BATCHES);
        (Self { to, waiting: Vec::new(), synced: Synced::default(), is_news: false }, told)
    }

    /// Keeps what changed for [`Self::deliver`].
    pub(super) fn apply(&mut self, applied: &[Event], synced: Synced) {
        let before = self.waiting.len();
        self.waiting.extend(applied.iter().filter(|event| is_of_matter(event)).cloned());
        self.is_news |= self.waiting.len() > before || self.synced != synced;
        self.synced = synced;
    }

    /// More waits than should: the sources are to be held back.
    pub(super) fn is_behind(&self) -> bool {
        self.waiting.len() > WAITING
    }

    /// Hands over what waits, once there is something and room for it. May be dropped and called again.
    pub(super) async fn deliver(&mut self) {
        if !self.is_news {
            return pending().await;
        }
        match self.to.reserve().await {
            Ok(permit) => {
                permit.send(Told { events: std::mem::take(&mut self.waiting), synced: self.synced });
                self.is_news = false;
            }
            // The thread ended, and with it the agent.
            Err(_) => pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use portway_model::k8s::{ObjectKey, ObjectKind};

    use super::*;

    fn gone(kind: ObjectKind, name: &str) -> Event {
        Event::Delete(ObjectKey { kind, name: name.into(), uid: "".into() })
    }

    #[test]
    fn everything_arrives_in_order_and_what_waits_is_one_batch() {
        let (mut owner, mut told) = ToIdentities::new();
        assert!(owner.deliver().now_or_never().is_none(), "nothing waits");
        let synced = Synced { pods: true, ..Synced::default() };
        for n in 0..6 {
            owner.apply(&[gone(ObjectKind::Pod, &n.to_string()), gone(ObjectKind::Service, "x")], synced);
            // From the third on there is no room.
            assert_eq!(owner.deliver().now_or_never().is_some(), n < 2);
        }
        let mut names = Vec::new();
        let mut batches = Vec::new();
        loop {
            let delivered = owner.deliver().now_or_never();
            let Some(Told { events, synced: said }) = told.recv().now_or_never().flatten() else { break };
            assert_eq!(said, synced);
            batches.push(events.len());
            names.extend(events.into_iter().map(|event| match event {
                Event::Delete(key) => key.name.to_string(),
                Event::Apply(_) => String::new(),
            }));
            assert!(delivered.is_none() || batches.len() > 1);
        }
        assert_eq!((names.concat(), batches), ("012345".to_owned(), vec![1, 1, 4]));
    }

    #[test]
    fn that_a_kind_has_synced_is_told_though_nothing_of_it_changed_and_once() {
        let (mut owner, mut told) = ToIdentities::new();
        let synced = Synced { identities: true, ..Synced::default() };
        owner.apply(&[], synced);
        owner.apply(&[], synced);
        assert!(owner.deliver().now_or_never().is_some());
        assert!(owner.deliver().now_or_never().is_none());
        assert_eq!(told.recv().now_or_never().flatten().map(|told| told.synced), Some(synced));
        owner.apply(
            &[gone(ObjectKind::EndpointSlice, "default/kubernetes"), gone(ObjectKind::EndpointSlice, "a/b")],
            synced,
        );
        owner.deliver().now_or_never();
        assert_eq!(told.recv().now_or_never().flatten().map(|told| told.events.len()), Some(1));
    }
}
