//! What a kernel that refuses a program says, and how far the programs are from its limits.

use aya::maps::MapData;
use portway_agent::programs::Loader;
use portway_datapath::layout;

use super::world::within;

/// Instructions that the verifier may walk through for one program. A kernel's limit is a million, and one kernel's
/// verifier walks several times as far as another's.
const MOST: u32 = 20_000;

/// <https://github.com/cilium/cilium/issues/25500>
#[test]
fn pain_85_every_program_is_far_from_the_verifiers_limit() {
    within("size", |world| {
        let programs = world.load();
        assert_eq!(programs.loaded().len(), 12);
        for program in programs.loaded() {
            let verified = program.verified_instructions.expect("this kernel counts");
            println!("{}: {verified} instructions verified in {:?}", program.name, program.load_time);
            assert!(verified > 0 && verified < MOST, "{program:?}");
        }
    });
}

/// <https://github.com/cilium/cilium/issues/40457>
#[test]
fn pain_85_a_program_that_is_refused_is_named_with_the_verifiers_last_words() {
    within("refused", |world| {
        // A key of it is longer than what the programs look services up by.
        let path = world.maps.join(layout::SERVICES);
        std::fs::remove_file(&path).unwrap();
        MapData::from_pin(world.maps.join(layout::SOURCE_RANGES)).unwrap().pin(&path).unwrap();
        let error = Loader::new().unwrap().load(&world.maps).unwrap_err().to_string();
        let (program, why) = error.split_once("; the verifier says: ").expect("the verifier's words");
        assert!(program.starts_with("the kernel refuses program sendmsg4: "), "{error}");
        assert!(why.contains("R0"), "{error}");
        // Its log has hundreds of lines.
        assert_eq!(error.lines().count(), 1, "{error}");
    });
}
