use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::Instant;

use tempfile::TempDir;

use super::*;

/// What a follower that keeps what it is told would hold.
struct Follower {
    directory: Directory,
    files: BTreeMap<String, String>,
    /// Events of the last batch, as `+path`, `-path`, `!path` and `missing`.
    batch: Vec<String>,
}

impl Follower {
    fn new(root: &Path) -> Self {
        Self { directory: Directory::open(root).unwrap(), files: BTreeMap::new(), batch: Vec::new() }
    }

    async fn batch(&mut self) -> &[String] {
        self.batch.clear();
        loop {
            let next = tokio::time::timeout(Duration::from_secs(10), self.directory.next()).await;
            match next.expect("an event within 10 s").unwrap() {
                Event::File { path, content } => {
                    self.batch.push(format!("+{}", path.display()));
                    self.files.insert(path.display().to_string(), String::from_utf8(content).unwrap());
                }
                Event::Removed { path } => {
                    self.batch.push(format!("-{}", path.display()));
                    self.files.remove(&path.display().to_string());
                }
                Event::Unreadable { path, .. } => self.batch.push(format!("!{}", path.display())),
                Event::Missing { .. } => {
                    self.batch.push("missing".to_owned());
                    return &self.batch;
                }
                Event::Settled => return &self.batch,
            }
        }
    }

    /// Batches until the files are as given.
    async fn until(&mut self, files: &[(&str, &str)]) {
        let want: BTreeMap<String, String> = files.iter().map(|(p, c)| ((*p).into(), (*c).into())).collect();
        while self.files != want {
            self.batch().await;
        }
    }

    /// No event for a while.
    async fn stays_quiet(&mut self) {
        let next = tokio::time::timeout(Duration::from_millis(700), self.directory.next()).await;
        assert!(next.is_err(), "{next:?}");
    }
}

fn write(dir: &Path, name: &str, content: &str) {
    fs::write(dir.join(name), content).unwrap();
}

/// As a careful writer does it: beside, then renamed.
fn put(dir: &Path, name: &str, content: &str) {
    let beside = dir.join(format!(".{}.tmp", name.replace('/', "-")));
    fs::write(&beside, content).unwrap();
    fs::rename(beside, dir.join(name)).unwrap();
}

async fn settled(files: &[(&str, &str)]) -> (TempDir, Follower) {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        if let Some(parent) = Path::new(name).parent() {
            fs::create_dir_all(dir.path().join(parent)).unwrap();
        }
        write(dir.path(), name, content);
    }
    let mut follower = Follower::new(dir.path());
    follower.batch().await;
    (dir, follower)
}

#[tokio::test]
async fn the_first_scan_is_whole_and_in_order_of_the_paths() {
    let files = [
        ("b.yaml", "b"),
        ("a/x.yml", "x"),
        ("c.json", "c"),
        ("notes.txt", "-"),
        (".hidden.yaml", "-"),
        ("a.yaml", "a"),
    ];
    let (_dir, mut follower) = settled(&files).await;
    assert_eq!(follower.batch, ["+a/x.yml", "+a.yaml", "+b.yaml", "+c.json"]);
    follower.stays_quiet().await;
}

#[tokio::test]
async fn an_empty_directory_settles_too() {
    let (_dir, follower) = settled(&[]).await;
    assert_eq!(follower.batch, Vec::<String>::new());
}

#[tokio::test]
async fn a_rename_into_the_directory_is_seen_within_milliseconds() {
    let (dir, mut follower) = settled(&[("a.yaml", "0")]).await;
    let mut latencies = Vec::new();
    for round in 1..=50 {
        let content = round.to_string();
        put(dir.path(), "a.yaml", &content);
        let renamed = Instant::now();
        assert_eq!(follower.batch().await, ["+a.yaml"]);
        latencies.push(renamed.elapsed());
        assert_eq!(follower.files["a.yaml"], content);
    }
    latencies.sort();
    // The median: other work on the machine delays single rounds.
    assert!(latencies[25] < Duration::from_millis(5), "{latencies:?}");
}

#[tokio::test]
async fn removals_and_renames_out_and_within_are_seen() {
    let (dir, mut follower) = settled(&[("a.yaml", "a"), ("b.yaml", "b"), ("c.yaml", "c")]).await;
    fs::remove_file(dir.path().join("a.yaml")).unwrap();
    fs::rename(dir.path().join("b.yaml"), dir.path().join("b.off")).unwrap();
    fs::rename(dir.path().join("c.yaml"), dir.path().join("d.yaml")).unwrap();
    assert_eq!(follower.batch().await, ["-a.yaml", "-b.yaml", "-c.yaml", "+d.yaml"]);
    follower.until(&[("d.yaml", "c")]).await;
}

#[tokio::test]
async fn a_mounted_configmap_swaps_all_its_files_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let version = |name: &str, files: &[(&str, &str)]| {
        fs::create_dir(root.join(name)).unwrap();
        for (file, content) in files {
            write(&root.join(name), file, content);
        }
    };
    let swap = |to: &str| {
        symlink(to, root.join("..data_tmp")).unwrap();
        fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
    };
    version("..1", &[("a.yaml", "a1"), ("b.yaml", "b1"), ("gone.yaml", "g")]);
    swap("..1");
    for name in ["a.yaml", "b.yaml", "gone.yaml"] {
        symlink(format!("..data/{name}"), root.join(name)).unwrap();
    }
    let mut follower = Follower::new(root);
    assert_eq!(follower.batch().await, ["+a.yaml", "+b.yaml", "+gone.yaml"]);
    version("..2", &[("a.yaml", "a2"), ("b.yaml", "b2")]);
    swap("..2");
    follower.until(&[("a.yaml", "a2"), ("b.yaml", "b2")]).await;
    fs::remove_dir_all(root.join("..1")).unwrap();
    fs::remove_file(root.join("gone.yaml")).unwrap();
    follower.stays_quiet().await;
}

#[tokio::test]
async fn the_root_itself_may_be_a_link_that_is_swapped() {
    let dir = tempfile::tempdir().unwrap();
    for (version, content) in [("v1", "1"), ("v2", "2")] {
        fs::create_dir(dir.path().join(version)).unwrap();
        write(&dir.path().join(version), "a.yaml", content);
    }
    let root = dir.path().join("current");
    symlink("v1", &root).unwrap();
    let mut follower = Follower::new(&root);
    follower.until(&[("a.yaml", "1")]).await;
    symlink("v2", dir.path().join("next")).unwrap();
    fs::rename(dir.path().join("next"), &root).unwrap();
    follower.until(&[("a.yaml", "2")]).await;
    // The new target is watched.
    put(&root, "a.yaml", "3");
    follower.until(&[("a.yaml", "3")]).await;
}

#[tokio::test]
async fn subdirectories_come_and_go_with_their_files() {
    let (dir, mut follower) = settled(&[("a.yaml", "a")]).await;
    fs::create_dir_all(dir.path().join("x/y")).unwrap();
    write(dir.path(), "x/y/b.yaml", "b");
    follower.until(&[("a.yaml", "a"), ("x/y/b.yaml", "b")]).await;
    put(&dir.path().join("x/y"), "b.yaml", "b2");
    follower.until(&[("a.yaml", "a"), ("x/y/b.yaml", "b2")]).await;
    fs::rename(dir.path().join("x"), dir.path().join("z")).unwrap();
    follower.until(&[("a.yaml", "a"), ("z/y/b.yaml", "b2")]).await;
    fs::remove_dir_all(dir.path().join("z")).unwrap();
    follower.until(&[("a.yaml", "a")]).await;
}

#[tokio::test]
async fn linked_directories_are_followed_and_loops_end() {
    let outside = tempfile::tempdir().unwrap();
    write(outside.path(), "o.yaml", "o");
    let (dir, mut follower) = settled(&[("a.yaml", "a")]).await;
    symlink(".", dir.path().join("loop")).unwrap();
    symlink(outside.path(), dir.path().join("link")).unwrap();
    follower.until(&[("a.yaml", "a"), ("link/o.yaml", "o")]).await;
    put(outside.path(), "o.yaml", "o2");
    follower.until(&[("a.yaml", "a"), ("link/o.yaml", "o2")]).await;
    fs::remove_file(dir.path().join("link")).unwrap();
    follower.until(&[("a.yaml", "a")]).await;
}

#[tokio::test]
async fn a_file_that_is_being_written_waits_for_its_close() {
    use std::io::Write as _;
    let (dir, mut follower) = settled(&[]).await;
    let mut file = fs::File::create(dir.path().join("a.yaml")).unwrap();
    file.write_all(b"first ").unwrap();
    let early = tokio::time::timeout(WRITE_PATIENCE / 3, follower.directory.next()).await;
    assert!(early.is_err(), "{early:?}");
    file.write_all(b"second").unwrap();
    drop(file);
    assert_eq!(follower.batch().await, ["+a.yaml"]);
    assert_eq!(follower.files["a.yaml"], "first second");
    follower.stays_quiet().await;
}

#[tokio::test]
async fn a_file_that_is_never_closed_is_read_as_it_is() {
    use std::io::Write as _;
    let (dir, mut follower) = settled(&[]).await;
    let mut file = fs::File::create(dir.path().join("a.yaml")).unwrap();
    file.write_all(b"held open").unwrap();
    follower.until(&[("a.yaml", "held open")]).await;
    file.write_all(b", and more").unwrap();
    follower.until(&[("a.yaml", "held open, and more")]).await;
}

#[tokio::test]
async fn a_hard_link_is_whole_when_it_appears() {
    let (dir, mut follower) = settled(&[("notes.txt", "linked")]).await;
    fs::hard_link(dir.path().join("notes.txt"), dir.path().join("a.yaml")).unwrap();
    let began = Instant::now();
    follower.until(&[("a.yaml", "linked")]).await;
    assert!(began.elapsed() < WRITE_PATIENCE, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_directory_that_vanishes_keeps_its_files_until_it_is_back() {
    let parent = tempfile::tempdir().unwrap();
    let root = parent.path().join("manifests");
    let mut follower = Follower::new(&root);
    // Missing from the start: told at once, and not settled as if it were empty.
    assert_eq!(follower.batch().await, ["missing"]);
    follower.stays_quiet().await;
    fs::create_dir(&root).unwrap();
    write(&root, "a.yaml", "a");
    write(&root, "b.yaml", "b");
    follower.until(&[("a.yaml", "a"), ("b.yaml", "b")]).await;

    fs::rename(&root, parent.path().join("away")).unwrap();
    while !follower.batch().await.contains(&"missing".to_owned()) {}
    assert_eq!(follower.files.len(), 2);
    write(&parent.path().join("away"), "a.yaml", "a2");
    fs::remove_file(parent.path().join("away/b.yaml")).unwrap();
    fs::rename(parent.path().join("away"), &root).unwrap();
    follower.until(&[("a.yaml", "a2")]).await;

    // Removed with everything in it, its parents too: looked for again without a watch.
    fs::remove_dir_all(&root).unwrap();
    while !follower.batch().await.contains(&"missing".to_owned()) {}
    fs::create_dir(&root).unwrap();
    follower.until(&[]).await;
}

#[tokio::test]
async fn lost_events_are_made_up_by_a_scan() {
    let (dir, mut follower) = settled(&[("a.yaml", "a"), ("z.yaml", "z")]).await;
    let limit: usize =
        fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    // Each rename is two events; none is taken meanwhile.
    for _ in 0..limit / 4 + 1 {
        fs::rename(dir.path().join("a.yaml"), dir.path().join("b.yaml")).unwrap();
        fs::rename(dir.path().join("b.yaml"), dir.path().join("a.yaml")).unwrap();
    }
    put(dir.path(), "a.yaml", "after the overflow");
    fs::remove_file(dir.path().join("z.yaml")).unwrap();
    write(dir.path(), "new.yaml", "n");
    follower.until(&[("a.yaml", "after the overflow"), ("new.yaml", "n")]).await;
}

#[tokio::test]
async fn what_cannot_be_read_is_named_once_and_read_when_it_can_be() {
    let (dir, mut follower) = settled(&[("a.yaml", "a")]).await;
    let fifo = dir.path().join("pipe.yaml");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    assert_eq!(follower.batch().await, ["!pipe.yaml"]);
    fs::remove_file(&fifo).unwrap();
    assert_eq!(follower.batch().await, ["-pipe.yaml"]);
    put(dir.path(), "pipe.yaml", "p");
    follower.until(&[("a.yaml", "a"), ("pipe.yaml", "p")]).await;
    fs::set_permissions(dir.path().join("a.yaml"), fs::Permissions::from_mode(0o644)).unwrap();
    follower.stays_quiet().await;
}

#[tokio::test]
async fn files_that_come_without_pause_still_settle() {
    let (dir, mut follower) = settled(&[]).await;
    let root = dir.path().to_owned();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let writer = std::thread::spawn(move || {
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            put(&root, "a.yaml", "x");
        }
    });
    for _ in 0..20 {
        follower.batch().await;
    }
    drop(stop);
    writer.join().unwrap();
}
