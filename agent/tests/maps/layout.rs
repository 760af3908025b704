use aya::EbpfLoader;
use aya::maps::{Map, MapInfo};
use portway_agent::maps::{AnyMap, MapId, MapLayout, PodMapId};
use portway_agent::programs::{object, pods_object};
use portway_datapath::layout::{PodSizes, Sizes};

/// The loader takes pinned maps as they are, so what the programs were compiled for must be what is made.
#[test]
fn the_object_wants_every_map_as_it_is_made() {
    let mut wanted: Vec<_> = MapId::ALL.map(AnyMap::Service).into();
    wanted.push(AnyMap::Pod(PodMapId::Netns));
    assert_eq!(compared(object().unwrap()), wanted, "maps of the object");
}

#[test]
fn the_object_of_the_pod_network_wants_every_map_as_it_is_made() {
    let compared = compared(pods_object().unwrap());
    // Opting out is the socket programs' matter: the linker leaves that map in or out.
    let is_read = |map: &AnyMap| matches!(map, AnyMap::Pod(map) if *map != PodMapId::Netns);
    let pods = compared.iter().copied().filter(is_read);
    let wanted = PodMapId::ALL.map(AnyMap::Pod).into_iter().filter(is_read);
    assert!(pods.eq(wanted), "maps of the object: {compared:?}");
    // Of the services' maps it has those that its programs read.
    for map in [MapId::Frontends, MapId::Services, MapId::Runs, MapId::Backends] {
        assert!(compared.contains(&map.into()), "{map} is not in {compared:?}");
    }
}

/// The maps of an object that an agent makes, compared with how it makes them.
fn compared(object: &[u8]) -> Vec<AnyMap> {
    let ebpf = EbpfLoader::new().load(object).unwrap();
    let mut compared = Vec::new();
    let layouts: Vec<MapLayout> = MapId::ALL
        .map(|id| id.layout(&Sizes::DEFAULT))
        .into_iter()
        .chain(PodMapId::ALL.map(|id| id.layout(&PodSizes::DEFAULT)))
        .collect();
    for (name, map) in ebpf.maps() {
        let Some(layout) = layouts.iter().find(|layout| layout.id.to_string() == name) else { continue };
        let MapLayout { id, kind, key_size, value_size, entries, flags } = *layout;
        let info = info(map);
        assert_eq!(info.key_size(), key_size, "key of {name}");
        assert_eq!(info.value_size(), value_size, "value of {name}");
        assert_eq!(info.max_entries(), entries, "entries of {name}");
        assert_eq!(info.map_flags(), flags, "flags of {name}");
        assert_eq!(info.map_type().unwrap() as u32, kind as u32, "type of {name}");
        compared.push(id);
    }
    compared.sort_unstable();
    compared
}

#[expect(clippy::wildcard_enum_match_arm, reason = "not our enum")]
fn info(map: &Map) -> MapInfo {
    match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::LpmTrie(data)
        | Map::LruHashMap(data)
        | Map::PerCpuArray(data) => data.info().unwrap(),
        other => panic!("a map of another type: {other:?}"),
    }
}
