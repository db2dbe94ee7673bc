use std::os::unix::fs::symlink;

use super::*;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn the_argument_beats_the_environment_and_that_the_home() {
    let home = Path::new("/home/u");
    let resolve = |argument: Option<&str>, environment: Option<&str>, home| {
        InstallRoot::resolve(argument.map(Path::new), environment.map(OsStr::new), home)
    };
    assert_eq!(resolve(Some("/a"), Some("/b"), Some(home)).unwrap().path(), Path::new("/a"));
    assert_eq!(resolve(None, Some("/b"), Some(home)).unwrap().path(), Path::new("/b"));
    assert_eq!(resolve(None, Some(""), Some(home)).unwrap().path(), Path::new("/home/u/.holdfast"));
    assert_eq!(resolve(None, None, Some(home)).unwrap().path(), Path::new("/home/u/.holdfast"));
    assert!(matches!(resolve(None, None, None), Err(InstallRootError::NoHome)));
    assert!(matches!(resolve(Some(""), None, Some(home)), Err(InstallRootError::NotAbsolute { .. })));
    assert!(resolve(Some("here"), None, None).unwrap().path().is_absolute());
}

#[test]
fn the_root_is_shown_with_a_tilde_below_home() {
    let root = InstallRoot::at("/home/u/.holdfast");
    assert_eq!(root.shown(Some(Path::new("/home/u"))), "~/.holdfast");
    assert_eq!(root.shown(Some(Path::new("/home/other"))), "/home/u/.holdfast");
    assert_eq!(root.shown(Some(Path::new("/home/u/.holdfast"))), "/home/u/.holdfast");
    assert_eq!(root.shown(None), "/home/u/.holdfast");
}

#[test]
fn directories_are_made_private_with_their_parents_and_only_once() {
    let directory = tempfile::tempdir().unwrap();
    let root = InstallRoot::at(directory.path().join("deep/er/root"));
    let prepared = root.prepare().unwrap();
    assert_eq!(prepared.created.len(), 13);
    assert!(prepared.loose.is_empty());
    for path in &prepared.created {
        assert_eq!(mode(path), 0o700, "{}", path.display());
    }
    assert_eq!(root.prepare().unwrap(), Prepared::default());
    assert!(root.state_dir().is_dir() && root.sops_dir().is_dir() && root.agents_dir().is_dir());
}

#[test]
fn loose_directories_are_reported_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let root = InstallRoot::at(directory.path().join("root"));
    fs::create_dir(root.path()).unwrap();
    fs::set_permissions(root.path(), Permissions::from_mode(0o755)).unwrap();
    let prepared = root.prepare().unwrap();
    assert_eq!(prepared.loose, [(root.path().to_owned(), 0o755)]);
    assert_eq!(mode(root.path()), 0o755);
    assert_eq!(mode(&root.data_dir()), 0o700);
}

#[test]
fn a_file_in_place_of_a_directory_is_refused_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    let root = InstallRoot::at(directory.path().join("root"));
    fs::write(root.path(), "text").unwrap();
    let error = root.prepare().unwrap_err();
    assert!(matches!(&error, InstallRootError::NotADirectory { path, .. } if path == root.path()), "{error}");
    let below = InstallRoot::at(root.path().join("below"));
    let error = below.prepare().unwrap_err();
    assert!(matches!(&error, InstallRootError::NotADirectory { path, .. } if path == root.path()), "{error}");
    assert_eq!(fs::read_to_string(root.path()).unwrap(), "text");

    let other = InstallRoot::at(directory.path().join("other"));
    fs::create_dir(other.path()).unwrap();
    fs::write(other.data_dir(), "text").unwrap();
    assert!(matches!(other.prepare(), Err(InstallRootError::NotADirectory { .. })));
}

#[test]
fn the_root_may_be_a_link_but_nothing_below_it() {
    let directory = tempfile::tempdir().unwrap();
    let elsewhere = directory.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let root = InstallRoot::at(directory.path().join("root"));
    symlink(&elsewhere, root.path()).unwrap();
    root.prepare().unwrap();
    assert!(elsewhere.join("data/sessions").is_dir());

    fs::remove_dir(root.sops_dir()).unwrap();
    symlink(directory.path(), root.sops_dir()).unwrap();
    let error = root.prepare().unwrap_err();
    assert!(matches!(&error, InstallRootError::LinkInside { path } if *path == root.sops_dir()), "{error}");

    let dangling = InstallRoot::at(directory.path().join("dangling"));
    symlink(directory.path().join("nowhere"), dangling.path()).unwrap();
    assert!(matches!(dangling.prepare(), Err(InstallRootError::DanglingLink { .. })));
}

#[test]
fn a_root_of_another_user_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let user = rustix::process::geteuid().as_raw();
    // As root we can give a directory away; as anyone else, the file system's own root is somebody else's.
    let foreign = if user == 0 {
        let path = directory.path().join("foreign");
        fs::create_dir(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
        path
    } else {
        PathBuf::from("/")
    };
    let error = InstallRoot::at(&foreign).prepare().unwrap_err();
    assert!(matches!(error, InstallRootError::OtherOwner { .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Denied);
}

#[test]
fn lazily_made_directories_stay_inside() {
    let directory = tempfile::tempdir().unwrap();
    let root = InstallRoot::at(directory.path().join("root"));
    root.prepare().unwrap();
    let alias: AgentAlias = "claude".parse().unwrap();
    let workspace = root.make_directory(Path::new("agents/claude/workspace")).unwrap();
    assert_eq!(workspace, root.agent_workspace(&alias));
    assert_eq!(mode(&root.agent_dir(&alias)), 0o700);
    for bad in ["../outside", "/tmp/outside", "agents/../../outside"] {
        assert!(root.make_directory(Path::new(bad)).is_err(), "{bad}");
    }
    symlink(directory.path(), root.agents_dir().join("linked")).unwrap();
    assert!(matches!(
        root.make_directory(Path::new("agents/linked/workspace")),
        Err(InstallRootError::LinkInside { .. })
    ));
}

#[test]
fn two_starters_may_prepare_the_same_root_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let root = InstallRoot::at(directory.path().join("a/root"));
    std::thread::scope(|scope| {
        let starters: Vec<_> = (0..8).map(|_| scope.spawn(|| root.prepare())).collect();
        for starter in starters {
            starter.join().unwrap().unwrap();
        }
    });
}
