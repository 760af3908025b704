use super::InterfaceHook;

/// The name of the pin of a link. A bpf file system keeps dots for itself, and an interface may have them: they are escaped,
/// as is the escape.
pub(super) fn name(interface: &str, hook: InterfaceHook) -> String {
    let escaped = interface.replace('%', "%25").replace('.', "%2e");
    format!("{escaped}-{hook}")
}

/// The interface and the hook of a pin; `None` for a name that is none of ours.
pub(super) fn parse(pin: &str) -> Option<(String, InterfaceHook)> {
    let (interface, hook) = pin.rsplit_once('-')?;
    let hook = InterfaceHook::ALL.into_iter().find(|known| known.name() == hook)?;
    Some((interface.replace("%2e", ".").replace("%25", "%"), hook))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_tells_its_interface_and_hook() {
        for interface in ["eth0", "eth0.100", "a-b", "a%2e", "%25.", "x-ingress"] {
            for hook in InterfaceHook::ALL {
                let pin = name(interface, hook);
                assert!(!pin.contains('.') && !pin.contains('/'), "{pin}");
                assert_eq!(parse(&pin), Some((interface.to_owned(), hook)), "{pin}");
            }
        }
        assert_eq!(parse("connect4"), None);
        assert_eq!(parse("eth0-both"), None);
    }
}
