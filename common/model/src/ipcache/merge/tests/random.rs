//! Changes at random, one by one and all at once.

use proptest::prelude::*;

use super::*;

/// A change of some source, of few addresses, so that much of it meets.
#[derive(Clone, Debug)]
enum Step {
    Nodes(Vec<(u8, u8)>, Vec<u8>, bool),
    Set(EndpointSource, u8, u8, u8, u8),
    Remove(EndpointSource, u8, u8),
    ApiServer(Vec<u8>),
    Cidr(u8, u8, bool),
    Synced(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let source =
        prop_oneof![Just(EndpointSource::Slice), Just(EndpointSource::Object), Just(EndpointSource::Local)];
    let few = 0..6_u8;
    let step = prop_oneof![
        (
            prop::collection::vec((few.clone(), few.clone()), 0..4),
            prop::collection::vec(few.clone(), 0..3),
            any::<bool>()
        )
            .prop_map(|(nodes, local, knows)| Step::Nodes(nodes, local, knows)),
        (source.clone(), few.clone(), few.clone(), few.clone(), few.clone())
            .prop_map(|(source, a, uid, node, created)| Step::Set(source, a, uid, node, created)),
        (source, few.clone(), few.clone()).prop_map(|(source, a, uid)| Step::Remove(source, a, uid)),
        prop::collection::vec(few.clone(), 0..4).prop_map(Step::ApiServer),
        (few, 8..33_u8, any::<bool>()).prop_map(|(a, bits, on)| Step::Cidr(a, bits, on)),
        (0..4_usize).prop_map(Step::Synced),
    ];
    prop::collection::vec(step, 1..40)
}

/// An address among pods' and nodes' prefixes; the same ones come from everywhere.
fn at(n: u8) -> Addr {
    Addr::v4([10, 0, n / 2, n])
}

fn cidr(n: u8, bits: u8) -> Key {
    let prefix = Prefix::new(at(n), bits + 96).unwrap();
    (prefix.addr(), prefix.bits())
}

fn apply(written: &mut Written, step: &Step) {
    match step {
        Step::Nodes(nodes, local, knows) => {
            let nodes: Vec<_> = nodes
                .iter()
                .enumerate()
                .map(|(n, (address, cidr))| {
                    let name = if n == 0 { "this".to_owned() } else { format!("n{n}") };
                    node(&name, &at(*address).to_string(), &format!("10.0.{cidr}.0/24"))
                })
                .collect();
            let mut view = cluster(nodes.get(1..).unwrap_or_default());
            view.this = nodes.first().cloned();
            let reach = reach(&view, &options(true, &["10.0.0.0/14"]));
            let local = local.iter().map(|n| at(*n)).collect();
            let changes =
                written.ipcache.set_nodes(NodesView { reach: &reach, local: &local, knows: *knows });
            written.write(changes);
        }
        Step::Set(source, a, uid, node, created) => {
            let told = EndpointAddress {
                addr: at(*a),
                identity: id(256 + u32::from(*uid) * 8 + u32::from(*created)),
                node: Some(at(*node)),
                uid: Uid::new(&uid.to_string()),
                created: Some((*created).into()),
            };
            let change = written.ipcache.set_endpoint(*source, &told);
            written.write(change);
        }
        Step::Remove(source, a, uid) => {
            let change = written.ipcache.remove_endpoint(*source, at(*a), Uid::new(&uid.to_string()));
            written.write(change);
        }
        Step::ApiServer(all) => {
            let all =
                all.iter().map(|n| (at(*n), id(NumericIdentity::LOCAL_FIRST + u32::from(*n)))).collect();
            let changes = written.ipcache.set_api_server(all);
            written.write(changes);
        }
        Step::Cidr(a, bits, on) => {
            let identity = on.then(|| id(NumericIdentity::LOCAL_FIRST + 100 + u32::from(*bits)));
            let changes = written.ipcache.set_cidr(cidr(*a, *bits), identity);
            written.write(changes);
        }
        Step::Synced(source) => {
            let changes = written.ipcache.synced(Source::ALL[*source]);
            written.write(changes);
        }
    }
}

proptest! {
    /// What is written change by change is what the sources make at once, before and after all have spoken, and an agent
    /// that begins with another one's table comes to the same.
    #[test]
    fn changes_add_up_to_what_the_sources_make(earlier in steps(), steps in steps()) {
        let mut first = Written::new(true);
        earlier.iter().for_each(|step| apply(&mut first, step));
        prop_assert_eq!(&first.ipcache.entries().collect::<BTreeMap<_, _>>(), &first.table);

        let mut second = Written::restarted(true, first.table);
        let mut fresh = Written::new(true);
        for step in &steps {
            apply(&mut second, step);
            apply(&mut fresh, step);
            prop_assert_eq!(&second.ipcache.entries().collect::<BTreeMap<_, _>>(), &second.table);
        }
        for source in 0..4 {
            apply(&mut second, &Step::Synced(source));
            apply(&mut fresh, &Step::Synced(source));
        }
        prop_assert_eq!(&second.table, &fresh.table);
        let differences = second.ipcache.differences(&second.table.clone().into_iter().collect::<Vec<_>>());
        prop_assert_eq!(differences, []);
    }
}
