use aya::EbpfLoader;
use aya::maps::{Map, MapInfo};
use portway_agent::maps::{MapId, MapLayout};
use portway_agent::programs::object;
use portway_datapath::layout::Sizes;

/// The loader takes pinned maps as they are, so what the programs were compiled for must be what is made.
#[test]
fn the_object_wants_every_map_as_it_is_made() {
    let ebpf = EbpfLoader::new().load(object().unwrap()).unwrap();
    let mut compared = Vec::new();
    for (name, map) in ebpf.maps() {
        let Some(id) = MapId::ALL.into_iter().find(|id| id.name() == name) else { continue };
        let info = info(map);
        let MapLayout { id: _, kind, key_size, value_size, entries, flags } = id.layout(&Sizes::DEFAULT);
        assert_eq!(info.key_size(), key_size, "key of {name}");
        assert_eq!(info.value_size(), value_size, "value of {name}");
        assert_eq!(info.max_entries(), entries, "entries of {name}");
        assert_eq!(info.map_flags(), flags, "flags of {name}");
        assert_eq!(info.map_type().unwrap() as u32, kind as u32, "type of {name}");
        compared.push(id);
    }
    compared.sort_unstable();
    assert_eq!(compared, MapId::ALL, "maps of the object");
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
