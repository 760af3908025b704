use crate::{Addr, IpcacheValue};

/// Whether a packet that came through the tunnel from the node address `remote` may have the inner source that it has: the
/// sender is a node (`node`, what `pw_ipcache` says of `remote`), and the source is reached through the tunnel by that very
/// node (`source`, what it says of the source): one of its pods, or an address of its own.
///
/// A node with several addresses may send from another one than it is reached by; both lead to the same place.
#[inline(always)]
pub fn is_of_node(remote: Addr, node: Option<&IpcacheValue>, source: Option<&IpcacheValue>) -> bool {
    let (Some(node), Some(source)) = (node, source) else { return false };
    let Some(behind) = source.tunnel() else { return false };
    node.is(IpcacheValue::NODE) && (behind == remote || Some(behind) == node.tunnel())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NumericIdentity;

    const FIRST: Addr = Addr::v4([192, 168, 0, 1]);
    const OTHER_OF_FIRST: Addr = Addr::v4([192, 168, 7, 1]);
    const SECOND: Addr = Addr::v4([192, 168, 0, 2]);

    fn node(tunnel: Addr) -> IpcacheValue {
        IpcacheValue::new(NumericIdentity::UNKNOWN, Some(tunnel), IpcacheValue::NODE | IpcacheValue::INSIDE)
    }

    fn pods(tunnel: Option<Addr>) -> IpcacheValue {
        IpcacheValue::new(NumericIdentity::UNKNOWN, tunnel, IpcacheValue::PODS | IpcacheValue::INSIDE)
    }

    #[test]
    fn a_node_sends_for_its_pods_and_for_itself() {
        for source in [pods(Some(FIRST)), node(FIRST)] {
            assert!(is_of_node(FIRST, Some(&node(FIRST)), Some(&source)));
            assert!(is_of_node(OTHER_OF_FIRST, Some(&node(FIRST)), Some(&source)));
        }
    }

    #[test]
    fn nobody_sends_for_the_pods_of_another_node() {
        assert!(!is_of_node(SECOND, Some(&node(SECOND)), Some(&pods(Some(FIRST)))));
        assert!(!is_of_node(SECOND, Some(&node(SECOND)), Some(&node(FIRST))));
    }

    #[test]
    fn only_nodes_send_and_only_for_what_is_behind_a_tunnel() {
        assert!(!is_of_node(FIRST, None, Some(&pods(Some(FIRST)))), "a stranger");
        assert!(!is_of_node(FIRST, Some(&pods(Some(FIRST))), Some(&pods(Some(FIRST)))), "a pod");
        assert!(!is_of_node(FIRST, Some(&node(FIRST)), None), "the world");
        assert!(!is_of_node(FIRST, Some(&node(FIRST)), Some(&pods(None))), "this node's own pods");
        let natively = IpcacheValue::new(NumericIdentity::UNKNOWN, None, IpcacheValue::NODE);
        assert!(!is_of_node(FIRST, Some(&natively), Some(&pods(None))));
    }
}
