//! Filters: of pods' links, and of every interface where tcx is missing; beside what somebody else has there.

use super::*;

impl Node {
    fn tc(&self, words: &str) -> Result<String> {
        let mut tc = self.namespace.command("tc");
        let done = tc.args(words.split(' ')).output()?;
        ensure!(done.status.success(), "tc {words}: {}", String::from_utf8_lossy(&done.stderr));
        Ok(String::from_utf8(done.stdout)?)
    }

    fn filters(&self, direction: &str) -> Result<String> {
        self.tc(&format!("filter show dev pwpod {direction}"))
    }

    fn attach_pod(&self, programs: &InterfacePrograms) -> Result<[InterfaceChange; 2]> {
        self.namespace.run(|| {
            let ifindex = nix::net::if_::if_nametoindex("pwpod")?;
            let changes = programs.attach(ifindex, "pwpod", Side::Pod)?;
            ensure!(
                programs.is_attached(ifindex, "pwpod", Side::Pod)?,
                "attached, but not found: {changes:?}"
            );
            Ok(changes)
        })
    }
}

/// A program of tcx costs each new pod a grace period and each other one the wait for it.
#[test]
fn a_pods_link_has_filters_also_where_the_kernel_has_tcx() -> Result<()> {
    let node = Node::new()?;
    let (first, second) = (node.programs()?, node.programs()?);
    ensure!(first.has_tcx(), "this kernel has tcx");
    node.namespace.run(|| {
        let ifindex = nix::net::if_::if_nametoindex("pwpod")?;
        let attach = |agent: &InterfacePrograms| agent.attach(ifindex, "pwpod", Side::Pod);
        ensure!(attach(&first)? == [InterfaceChange::Attached; 2]);
        ensure!(first.is_attached(ifindex, "pwpod", Side::Pod)?);
        ensure!(running("pwpod")? == NONE);
        ensure!(!second.is_attached(ifindex, "pwpod", Side::Pod)?);
        let replaced = |name| InterfaceChange::Replaced { old_program: id(&first, name) };
        let changes = attach(&second)?;
        ensure!(changes == [replaced("pw_to_pod"), replaced("pw_from_pod")], "{changes:?}");
        ensure!(second.is_attached(ifindex, "pwpod", Side::Pod)? && second.attached()?.len() == 2);
        ensure!(second.detach("pwpod")? && !second.detach("pwpod")? && second.attached()?.is_empty());
        Ok(())
    })
}

#[test]
fn who_sees_what_a_pod_sends_is_linked_once_its_link_settles() -> Result<()> {
    let node = Node::new()?;
    let (first, second) = (node.programs()?, node.programs()?);
    ensure!(node.attach_pod(&first)? == [InterfaceChange::Attached; 2]);
    let settle = |agent: &InterfacePrograms| {
        node.namespace.run(|| Ok(agent.settle(nix::net::if_::if_nametoindex("pwpod")?, "pwpod")?))
    };
    let has_settled = |agent: &InterfacePrograms| -> Result<()> {
        ensure!(node.running("pwpod")? == [vec![id(agent, "pw_from_pod")], Vec::new()]);
        ensure!(node.filters("ingress")?.is_empty(), "{}", node.filters("ingress")?);
        ensure!(node.filters("egress")?.matches("handle 0x5057").count() == 1);
        Ok(())
    };
    ensure!(settle(&first)? && !settle(&first)?);
    has_settled(&first)?;
    ensure!(node.attach_pod(&first)? == [InterfaceChange::Unchanged; 2]);
    let replaced = |name| InterfaceChange::Replaced { old_program: id(&first, name) };
    let changes = node.attach_pod(&second)?;
    ensure!(changes == [replaced("pw_to_pod"), replaced("pw_from_pod")], "{changes:?}");
    has_settled(&second)?;
    // An agent that ended before the filter went.
    let third = InterfacePrograms::load_for_filters(node.root())?;
    node.namespace
        .run(|| Ok(third.attach(nix::net::if_::if_nametoindex("pwpod")?, "pwpod", Side::Pod)?))?;
    ensure!(!node.filters("ingress")?.is_empty());
    node.attach_pod(&second)?;
    has_settled(&second)?;
    let detach = || node.namespace.run(|| Ok(second.detach("pwpod")?));
    ensure!(detach()? && !detach()? && node.running("pwpod")? == NONE);
    ensure!(node.filters("egress")?.is_empty());
    let without_tcx = InterfacePrograms::load_for_filters(node.root())?;
    ensure!(node.attach_pod(&without_tcx)? == [InterfaceChange::Attached; 2] && !settle(&without_tcx)?);
    Ok(())
}

#[test]
fn filters_where_tcx_is_missing_are_one_each_and_replaced() -> Result<()> {
    let node = Node::new()?;
    let load = || InterfacePrograms::load_for_filters(node.root());
    let (first, second) = (load()?, load()?);
    ensure!(node.attach(&first, "pwpod")? == [InterfaceChange::Attached; 2]);
    ensure!(node.attach(&first, "pwpod")? == [InterfaceChange::Unchanged; 2]);
    let changes = node.attach(&second, "pwpod")?;
    let replaced = |name| InterfaceChange::Replaced { old_program: id(&first, name) };
    ensure!(changes == [replaced("pw_from_device"), replaced("pw_to_device")], "{changes:?}");
    for (direction, name) in [("ingress", "pw_from_device"), ("egress", "pw_to_device")] {
        let shown = node.filters(direction)?;
        ensure!(shown.matches("handle 0x5057").count() == 1, "{shown}");
        ensure!(shown.contains(name) && shown.contains(&format!("id {}", id(&second, name))), "{shown}");
        ensure!(shown.contains("direct-action"), "{shown}");
    }
    let attached = node.namespace.run(|| Ok(second.attached()?))?;
    ensure!(attached.len() == 2 && attached.iter().all(|at| at.interface == "pwpod"), "{attached:?}");
    // `cleanup` needs no programs to find them.
    let detached = node
        .namespace
        .run(|| Ok(cleanup(node.root(), &node.dir.path().join("state"), &node.dir.path().join("socket"))?))?;
    ensure!(detached.iter().any(|line| line == "detached the filters of pwpod"), "{detached:?}");
    ensure!(node.filters("ingress")?.is_empty() && node.filters("egress")?.is_empty());
    Ok(())
}

/// The bandwidth plugin makes such a qdisc. It has one block of filters, for what is received: a filter for egress would
/// land there too.
#[test]
fn beside_an_ingress_qdisc_of_somebody_else_a_pods_programs_are_linked() -> Result<()> {
    let node = Node::new()?;
    node.tc("qdisc add dev pwpod ingress")?;
    let (first, second) = (node.programs()?, node.programs()?);
    let ours = |agent| [vec![id(agent, "pw_from_pod")], vec![id(agent, "pw_to_pod")]];
    ensure!(node.attach_pod(&first)? == [InterfaceChange::Attached; 2]);
    ensure!(node.attach_pod(&first)? == [InterfaceChange::Unchanged; 2]);
    ensure!(node.running("pwpod")? == ours(&first));
    ensure!(node.filters("ingress")?.is_empty(), "{}", node.filters("ingress")?);
    // They stay links when it goes: filters beside them would see each packet a second time.
    node.tc("qdisc delete dev pwpod ingress")?;
    let replaced = |name| InterfaceChange::Replaced { old_program: id(&first, name) };
    let changes = node.attach_pod(&second)?;
    ensure!(changes == [replaced("pw_to_pod"), replaced("pw_from_pod")], "{changes:?}");
    ensure!(node.running("pwpod")? == ours(&second));
    ensure!(node.filters("ingress")?.is_empty() && node.filters("egress")?.is_empty());
    let detach = || node.namespace.run(|| Ok(second.detach("pwpod")?));
    ensure!(detach()? && !detach()? && node.running("pwpod")? == NONE);
    ensure!(node.attach_pod(&second)? == [InterfaceChange::Attached; 2]);
    ensure!(node.running("pwpod")? == NONE && node.filters("egress")?.contains("pw_to_pod"));
    Ok(())
}

#[test]
fn an_ingress_qdisc_of_somebody_else_is_named_where_tcx_is_missing() -> Result<()> {
    let node = Node::new()?;
    node.tc("qdisc add dev pwpod ingress")?;
    let programs = InterfacePrograms::load_for_filters(node.root())?;
    let refused = node.attach_pod(&programs).map_err(|error| format!("{error:#}"));
    let names = |text: &String| text.contains("interface pwpod") && text.contains("qdisc ingress");
    ensure!(refused.as_ref().is_err_and(names), "{refused:?}");
    ensure!(node.filters("ingress")?.is_empty(), "{}", node.filters("ingress")?);
    Ok(())
}

#[test]
fn beside_filters_of_somebody_else_ours_are_one_each_and_theirs_stay() -> Result<()> {
    let node = Node::new()?;
    let programs = || InterfacePrograms::load_for_filters(node.root());
    let (first, second) = (programs()?, programs()?);
    node.tc("qdisc add dev pwpod clsact")?;
    // Of another kind and protocol at the priority that ours has, and at the next one.
    for direction in ["ingress", "egress"] {
        for priority in [1, 2] {
            let filter = format!("dev pwpod {direction} protocol ip prio {priority} u32 match u32 0 0");
            node.tc(&format!("filter add {filter}"))?;
        }
    }
    let one_each = |agent: &InterfacePrograms| -> Result<()> {
        for (direction, name) in [("ingress", "pw_from_device"), ("egress", "pw_to_device")] {
            let shown = node.filters(direction)?;
            ensure!(shown.matches("handle 0x5057").count() == 1, "{shown}");
            ensure!(shown.contains(name) && shown.contains(&format!("id {}", id(agent, name))), "{shown}");
        }
        Ok(())
    };
    ensure!(node.attach(&first, "pwpod")? == [InterfaceChange::Attached; 2]);
    one_each(&first)?;
    ensure!(node.attach(&first, "pwpod")? == [InterfaceChange::Unchanged; 2]);
    // Where the place that was taken is free again, a restart replaces where ours are.
    node.tc("filter delete dev pwpod egress protocol ip prio 1")?;
    let replaced = |name| InterfaceChange::Replaced { old_program: id(&first, name) };
    let changes = node.attach(&second, "pwpod")?;
    ensure!(changes == [replaced("pw_from_device"), replaced("pw_to_device")], "{changes:?}");
    one_each(&second)?;
    let detach = || node.namespace.run(|| Ok(second.detach("pwpod")?));
    ensure!(detach()? && !detach()?);
    for (direction, theirs) in [("ingress", "pref 1 u32"), ("egress", "pref 2 u32")] {
        let shown = node.filters(direction)?;
        ensure!(shown.contains(theirs) && !shown.contains("pw_"), "{shown}");
    }
    Ok(())
}

/// A filter of ours is one by its handle and its name.
#[test]
fn a_filter_of_somebody_else_with_our_handle_is_not_replaced() -> Result<()> {
    let node = Node::new()?;
    let programs = InterfacePrograms::load_for_filters(node.root())?;
    node.tc("qdisc add dev pwpod clsact")?;
    // Of classic BPF, which matches nothing.
    let filter = "filter add dev pwpod ingress protocol all prio 1 handle 0x5057 bpf bytecode";
    let done = node.namespace.command("tc").args(filter.split(' ')).arg("1,6 0 0 0,").status()?;
    ensure!(done.success(), "tc {filter}: {done}");
    ensure!(node.attach(&programs, "pwpod")? == [InterfaceChange::Attached; 2]);
    let shown = node.filters("ingress")?;
    ensure!(shown.contains("pw_from_device") && shown.matches("handle 0x5057").count() == 2, "{shown}");
    ensure!(node.namespace.run(|| Ok(programs.detach("pwpod")?))?);
    let shown = node.filters("ingress")?;
    ensure!(shown.matches("handle 0x5057").count() == 1, "{shown}");
    Ok(())
}
