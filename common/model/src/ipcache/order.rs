use super::merge::EntryChange;

/// Changes in the order in which they are written one by one, so that at each moment every address finds the value that it
/// had or the one that it will have, and never that of a prefix around both: what is new first, longest prefixes first; then
/// what goes, shortest prefixes first.
pub fn in_order(changes: impl IntoIterator<Item = EntryChange>) -> Vec<EntryChange> {
    let mut changes: Vec<_> = changes.into_iter().collect();
    changes.sort_by_key(|EntryChange { key: (_, bits), value, .. }| match value {
        Some(_) => (false, u8::MAX - bits),
        None => (true, *bits),
    });
    changes
}
