use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;

use portway_runtime::kubernetes::{EventRecorder, EventType, Regarding};

use crate::controller::Trouble;
use crate::observed::Kind;

/// The troubles of a controller's last plan. Each is told once as an Event, and again when it comes back.
#[derive(Debug, Default)]
pub(crate) struct Told(BTreeMap<Key, Entry>);

#[derive(Debug)]
struct Entry {
    trouble: Trouble,
    is_told: bool,
}

/// What makes two troubles the same: a message may have numbers that change.
type Key = (Kind, String, String, &'static str);

impl Told {
    pub(crate) fn troubles(&self) -> impl Iterator<Item = &Trouble> {
        self.0.values().map(|entry| &entry.trouble)
    }

    /// Takes the troubles of a plan and tells those that are new. What finds no room is told the next time.
    pub(crate) fn tell(&mut self, troubles: Vec<Trouble>, events: &EventRecorder) {
        self.update(troubles, |trouble| {
            let Trouble { kind, object, uid, reason, message } = trouble;
            let is_told =
                events.record(regarding(*kind, object, uid), EventType::Warning, reason, message.clone());
            if is_told {
                tracing::warn!(kind = kind.name(), object, reason, message, "trouble");
            }
            is_told
        });
    }

    fn update(&mut self, troubles: Vec<Trouble>, mut tell: impl FnMut(&Trouble) -> bool) {
        let before = std::mem::take(&mut self.0);
        for trouble in troubles {
            let key = (trouble.kind, trouble.object.clone(), trouble.uid.clone(), trouble.reason);
            if let MapEntry::Vacant(vacant) = self.0.entry(key) {
                let was_told = before.get(vacant.key()).is_some_and(|entry| entry.is_told);
                let is_told = was_told || tell(&trouble);
                vacant.insert(Entry { trouble, is_told });
            }
        }
    }
}

fn regarding(kind: Kind, object: &str, uid: &str) -> Regarding {
    let (namespace, name) = object.split_once('/').unwrap_or(("", object));
    Regarding {
        api_version: kind.api_version().to_owned(),
        kind: kind.name().to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trouble(object: &str, message: &str) -> Trouble {
        Trouble {
            kind: Kind::CiliumNode,
            object: object.to_owned(),
            uid: "1".to_owned(),
            reason: "PoolExhausted",
            message: message.to_owned(),
        }
    }

    #[test]
    fn a_trouble_is_told_once_and_again_when_it_comes_back() {
        let mut told = Told::default();
        let mut update = |troubles: Vec<Trouble>, has_room: bool| {
            let mut news = Vec::new();
            told.update(troubles, |trouble| {
                news.push(trouble.object.clone());
                has_room
            });
            (news, told.troubles().count())
        };
        let (a, b) = (|| trouble("a", "3 nodes wait"), || trouble("b", "4 nodes wait"));
        assert_eq!(update(vec![a(), b(), a()], true), (vec!["a".to_owned(), "b".to_owned()], 2));
        assert_eq!(update(vec![trouble("a", "5 nodes wait")], true), (Vec::new(), 1));
        // There is no room for it, but in the status it is.
        assert_eq!(update(vec![a(), b()], false), (vec!["b".to_owned()], 2));
        assert_eq!(update(vec![b()], true), (vec!["b".to_owned()], 1));
        assert_eq!(update(vec![b()], true), (Vec::new(), 1));
        assert_eq!(update(Vec::new(), true), (Vec::new(), 0));
    }
}
