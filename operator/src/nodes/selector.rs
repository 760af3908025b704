//! Label selectors, as `kubectl -l` takes them.

use std::sync::Arc;

/// Which labels an object must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    /// `None`: any value.
    values: Option<Vec<String>>,
    /// Objects that fulfil the rest are left out.
    is_negated: bool,
}

/// What is no label selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    #[error("{0:?} is none of key=value, key!=value, key in (value,value), key notin (value), key and !key")]
    Requirement(String),
    #[error("it selects everything")]
    Empty,
}

impl Selector {
    /// Requirements with commas between them.
    ///
    /// # Errors
    /// One of them is none, or there is none.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let parts = parts(text);
        let requirements: Vec<_> = parts.map(|part| requirement(part.trim())).collect::<Result<_, _>>()?;
        if requirements.is_empty() { Err(SelectorError::Empty) } else { Ok(Self(requirements)) }
    }

    /// Selects no object.
    pub fn nothing() -> Self {
        let never = Requirement { key: String::new(), values: Some(Vec::new()), is_negated: false };
        Self(vec![never])
    }

    /// Whether an object with these labels, sorted by their keys, is meant.
    pub fn selects(&self, labels: &[(Arc<str>, Arc<str>)]) -> bool {
        self.0.iter().all(|Requirement { key, values, is_negated }| {
            let at = labels.binary_search_by(|(known, _)| (**known).cmp(key));
            let value = at.ok().and_then(|at| labels.get(at)).map(|(_, value)| &**value);
            let fulfils = value.is_some_and(|value| {
                values.as_ref().is_none_or(|values| values.iter().any(|allowed| allowed == value))
            });
            fulfils != *is_negated
        })
    }
}

/// Between commas that are in no parentheses.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    let parts = text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.filter(|part| !part.trim().is_empty())
}

fn requirement(text: &str) -> Result<Requirement, SelectorError> {
    let bad = || SelectorError::Requirement(text.to_owned());
    let (key, values, is_negated) = if let Some((key, value)) = text.split_once("!=") {
        (key, Some(vec![value]), true)
    } else if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        (key, Some(vec![value]), false)
    } else if let Some((head, values)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        let (key, word) = head.trim().rsplit_once(char::is_whitespace).ok_or_else(bad)?;
        let is_negated = match word {
            "in" => false,
            "notin" => true,
            _ => return Err(bad()),
        };
        (key, Some(values.split(',').collect()), is_negated)
    } else {
        let (key, is_negated) = text.strip_prefix('!').map_or((text, false), |key| (key, true));
        (key, None, is_negated)
    };
    let key = key.trim();
    let values = values.map(|values: Vec<&str>| values.into_iter().map(str::trim).collect::<Vec<_>>());
    let is_text = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._/".contains(&b));
    let values_are_texts = values.iter().flatten().all(|value| is_text(value));
    if key.is_empty() || !is_text(key) || !values_are_texts {
        return Err(bad());
    }
    let values = values.map(|values| values.into_iter().map(str::to_owned).collect());
    Ok(Requirement { key: key.to_owned(), values, is_negated })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selects(selector: &str, labels: &[(&str, &str)]) -> bool {
        let labels: Vec<_> = labels.iter().map(|(key, value)| (Arc::from(*key), Arc::from(*value))).collect();
        Selector::parse(selector).unwrap().selects(&labels)
    }

    #[test]
    fn every_form_of_kubectl_is_understood() {
        let labels = [("app.kubernetes.io/name", "dns"), ("k8s-app", "kube-dns"), ("zone", "")];
        for selector in [
            "k8s-app=kube-dns",
            "k8s-app == kube-dns , zone=",
            "k8s-app in (coredns, kube-dns)",
            "k8s-app notin (coredns),app.kubernetes.io/name",
            "!absent,absent!=x,absent notin (x)",
        ] {
            assert!(selects(selector, &labels), "{selector}");
        }
        for selector in [
            "k8s-app=coredns",
            "k8s-app!=kube-dns",
            "!zone",
            "absent",
            "absent in (x)",
            "k8s-app=kube-dns,x=y",
        ] {
            assert!(!selects(selector, &labels), "{selector}");
        }
    }

    #[test]
    fn what_is_no_selector_is_refused() {
        for text in ["=x", "a b", "a in x", "a of (x)", "a=x y", "a in (x", "a>1"] {
            assert_eq!(Selector::parse(text), Err(SelectorError::Requirement(text.to_owned())), "{text}");
        }
        assert_eq!(Selector::parse(" , "), Err(SelectorError::Empty));
    }
}
