use std::collections::HashSet;
use std::sync::Arc;

/// Strings that many objects share (node names, zones, namespaces with names, port names), each held once.
#[derive(Debug, Default)]
pub struct Names {
    known: HashSet<Arc<str>>,
    sweep_at: usize,
}

impl Names {
    const SMALLEST_SWEEP: usize = 1024;

    /// The one copy of `name`'s text: `name` itself, unless there was another one.
    pub fn hold(&mut self, name: &Arc<str>) -> Arc<str> {
        match self.known.get(name) {
            Some(known) => Arc::clone(known),
            None => {
                self.known.insert(Arc::clone(name));
                Arc::clone(name)
            }
        }
    }

    /// The one copy of `text`. Forgets strings that nobody holds any more, now and then: O(1) amortised.
    pub fn get(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.known.get(text) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.sweep_at.max(Self::SMALLEST_SWEEP) {
            self.known.retain(|name| Arc::strong_count(name) > 1);
            self.sweep_at = self.known.len() * 2;
        }
        let name: Arc<str> = Arc::from(text);
        self.known.insert(Arc::clone(&name));
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_held_once_and_forgotten_when_nobody_has_it() {
        let mut names = Names::default();
        let kept = names.get("node-a");
        assert!(Arc::ptr_eq(&kept, &names.get("node-a")));
        for n in 0..100_000 {
            names.get(&n.to_string());
        }
        assert!(names.known.len() <= Names::SMALLEST_SWEEP + 1, "{}", names.known.len());
        assert!(Arc::ptr_eq(&kept, &names.get("node-a")));
    }
}
