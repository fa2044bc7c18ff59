//! Legacy IPC of the pool's memory: two processes, both preloaded, of one C program.

use super::common::{
    built, compile, ends_well, linked, preloaded, preloaded_with, runtimes, text, with_runtime,
};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| linked("ipc.c", "ipc"))
}

/// A runtime folder of the test's own, which holds the folder of sockets.
fn runtime(name: &str) -> PathBuf {
    // Short, as a socket's path must be.
    let folder = std::env::temp_dir().join(format!("forebay-test-{}-{name}", std::process::id()));
    let _absent = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn scenario(name: &str, runtime: &Path) -> Command {
    let mut command = preloaded(program());
    command.arg(name).env("XDG_RUNTIME_DIR", runtime);
    command
}

/// Runs a scenario to a good end; the folder of sockets is empty afterwards.
fn ends_clean(name: &str, variables: &[(&str, &str)]) -> String {
    let folder = runtime(name);
    let (_, errors) = ends_well(scenario(name, &folder).envs(variables.iter().copied()));
    if let Ok(left) = fs::read_dir(folder.join("forebay")) {
        assert_eq!(left.count(), 0, "{name}: sockets are left");
    }
    fs::remove_dir_all(&folder).expect("the test's own");
    errors
}

#[test]
fn a_block_is_opened_in_another_process() {
    assert_eq!(ends_clean("one", &[]), "");
}

/// Contents, offsets and ranges of a thousand handles over one connection, each opened twice.
#[test]
fn a_thousand_handles_need_one_connection() {
    let errors = ends_clean("many", &[("FOREBAY_SIM_MEMORY", "1GiB")]);
    assert_eq!(errors, "");
}

#[test]
fn handles_follow_the_drivers_rules() {
    let errors = ends_clean("rules", &[]);
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("is not opened: it has ended, or has freed the memory"), "{errors}");
}

#[test]
fn a_mapping_outlives_the_exporter() {
    let folder = runtime("killed-exporter");
    let (_, errors) = ends_well(&mut scenario("killed-exporter", &folder));
    assert!(errors.contains("it has ended"), "{errors}");
    fs::remove_dir_all(&folder).expect("the test's own");
}

#[test]
fn what_an_importer_held_is_reused_once_it_is_gone() {
    assert_eq!(ends_clean("killed-importer", &[]), "");
}

#[test]
fn a_freed_block_is_nobodys_while_it_is_held() {
    for seed in ["1", "2", "3"] {
        ends_clean("freed-while-held", &[("FOREBAY_SIM_SEED", seed)]);
    }
}

#[test]
fn a_context_ends_with_what_is_mapped_in_it() {
    ends_clean("reset", &[]);
}

#[test]
fn a_block_of_many_pages_needs_few_descriptors() {
    let errors = ends_clean("few", &[("FOREBAY_SIM_MEMORY", "3GiB")]);
    assert_eq!(errors, "");
}

#[test]
fn threads_open_and_close_the_same_handles() {
    for seed in ["1", "2"] {
        let variables = [("FOREBAY_SIM_SEED", seed), ("FOREBAY_SIM_MEMORY", "1GiB")];
        assert_eq!(ends_clean("threads", &variables), "");
    }
}

#[test]
fn children_take_nothing_away() {
    ends_clean("children", &[]);
}

#[test]
fn isolated_blocks_share_no_page() {
    assert_eq!(ends_clean("isolated", &[("FOREBAY_IPC", "isolate")]), "");
}

/// Of the driver's memory the handles are the driver's, on either side.
#[test]
fn the_drivers_memory_has_the_drivers_handles() {
    assert_eq!(ends_clean("drivers", &[("FOREBAY_IPC", "driver")]), "");
    assert_eq!(ends_clean("drivers", &[("FOREBAY_PRELOAD_MIN", "1MiB")]), "");
    let mut plain = preloaded(program());
    ends_well(plain.arg("drivers").env_remove("LD_PRELOAD"));
}

#[test]
fn a_process_without_a_pool_says_why_it_opens_nothing() {
    let errors = ends_clean("unserved", &[]);
    assert!(errors.contains("the pool does not serve this context"), "{errors}");
}

/// NCCL opens a peer's buffer with its own device current.
#[test]
fn memory_is_opened_with_a_peers_device_current() {
    for seed in ["1", "2", "3"] {
        let folder = runtime("peers");
        let mut run = scenario("peers", &folder);
        let (_, errors) = ends_well(run.env("FOREBAY_SIM_SEED", seed));
        assert_eq!(errors, "");
        fs::remove_dir_all(&folder).expect("the test's own");
    }
}

/// What `cuCtxEnablePeerAccess` would answer there.
#[test]
fn memory_of_a_device_out_of_reach_is_refused() {
    let errors = ends_clean("unreachable", &[("FOREBAY_SIM_LACKS", "peer")]);
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("the current device cannot reach its device"), "{errors}");
}

/// The same by the runtime's names.
#[test]
fn the_runtime_opens_memory_of_a_peer() {
    let Some(folder) = runtimes() else { return };
    for major in [12, 13] {
        let name = format!("runtime_ipc_{major}");
        let program = with_runtime("runtime_ipc.c", &name, &folder, major, &[]);
        let sockets = runtime(&name);
        let mut run = preloaded_with(&folder, &program);
        let (_, errors) = ends_well(run.env("XDG_RUNTIME_DIR", &sockets));
        assert_eq!(errors, "");
        run.arg("unreachable").env("FOREBAY_SIM_LACKS", "peer");
        let (_, errors) = ends_well(&mut run);
        assert!(errors.contains("the current device cannot reach its device"), "{errors}");
        fs::remove_dir_all(&sockets).expect("the test's own");
    }
}

/// A folder that others could enter, or that is none: nobody listens there.
#[test]
fn a_folder_that_is_open_to_others_is_refused() {
    let folder = runtime("mode");
    let sockets = folder.join("forebay");
    fs::create_dir(&sockets).expect("a folder");
    fs::set_permissions(&sockets, fs::Permissions::from_mode(0o750)).expect("own");
    let (_, errors) = ends_well(&mut scenario("refused", &folder));
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("forebay is open to other users (chmod 700)"), "{errors}");
    fs::remove_dir(&sockets).expect("empty");
    std::os::unix::fs::symlink("/tmp", &sockets).expect("a link");
    let (_, errors) = ends_well(&mut scenario("refused", &folder));
    assert!(errors.contains("forebay is no folder"), "{errors}");
    fs::remove_dir_all(&folder).expect("the test's own");
}

#[test]
fn a_device_that_shares_no_memory_gives_no_handle() {
    let errors = ends_clean("refused", &[("FOREBAY_SIM_LACKS", "fd")]);
    assert!(errors.contains("cuIpcGetMemHandle is refused: the device or the block"), "{errors}");
}

#[test]
fn sockets_of_dead_processes_are_removed() {
    let folder = runtime("stale");
    let output = scenario("leaves-its-socket", &folder).output().expect("it starts");
    assert!(text(&output.stdout).contains("well"), "{output:?}");
    let sockets = folder.join("forebay");
    let count = || fs::read_dir(&sockets).expect("it was made").count();
    assert_eq!(count(), 1);
    let mode = fs::metadata(&sockets).expect("it was made").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    // What is no socket of a dead process stays.
    let others = ["notes.txt", "1-0000000000000001.sock"];
    for other in others {
        fs::write(sockets.join(other), "").expect("own folder");
    }
    ends_well(&mut scenario("one", &folder));
    assert_eq!(count(), others.len());
    fs::remove_dir_all(&folder).expect("the test's own");
}

#[test]
fn another_users_process_is_refused() {
    let user = Command::new("id").arg("-u").output().expect("coreutils");
    if text(&user.stdout).trim() != "0" {
        return println!("another_users_process_is_refused: skipped, it needs the administrator");
    }
    // The other user's process loads what lies here.
    let folder = runtime("users");
    let places = [&built().preload, &built().pool, &built().driver];
    for place in places {
        let name = place.file_name().expect("a file");
        fs::copy(place, folder.join(name)).expect("a copy");
    }
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("own");
    let mut run = scenario("users", &folder);
    run.env("LD_PRELOAD", folder.join("libforebay_preload.so")).env("LD_LIBRARY_PATH", &folder);
    let (_, errors) = ends_well(&mut run);
    assert!(errors.contains("is not opened: it has ended"), "{errors}");
    fs::remove_dir_all(&folder).expect("the test's own");
    let _used_by_others = fs::remove_dir("/tmp/forebay-65534");
}

/// NCCL's order of questions: what the pool answers leads it to legacy handles.
#[test]
fn the_driver_refuses_its_own_handles_of_mapped_memory() {
    let program = compile(
        "ipc_mapped.c",
        "ipc_mapped",
        &[built().driver.to_str().expect("UTF-8"), "-Wl,--allow-shlib-undefined"],
    );
    ends_well(preloaded(&program).env_remove("LD_PRELOAD"));
    ends_well(&mut preloaded(&program));
}
