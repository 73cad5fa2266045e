//! `dlio-fs set-aside` on a mount, where a directory of the slow tier refuses what is to be made in it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;

use crate::common::{Mount, errno, succeeded, until};
use crate::needs::{MOUNTS, needs};

/// Makes a directory immutable while it lives.
struct Immutable(PathBuf);

impl Immutable {
    fn new(dir: PathBuf) -> Self {
        succeeded(Command::new("chattr").arg("+i").arg(&dir).output().unwrap());
        Immutable(dir)
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        Command::new("chattr").arg("-i").arg(&self.0).status().ok();
    }
}

fn dlio(arguments: &[&str], path: &Path) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_dlio-fs")).args(arguments).arg(path).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap().trim_end().to_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn first_line(mount: &Mount) -> String {
    mount.stats().lines().next().unwrap().to_owned()
}

#[test]
fn an_fsync_that_must_reach_the_slow_tier_fails_for_what_is_set_aside() {
    needs!(MOUNTS);
    let rule = r#"rules=[{path="run/*", fsync="slow"}]"#;
    let mount = Mount::with(&["settle=0s", rule], |slow| fs::create_dir(slow.join("run")).unwrap());
    let _poison = Immutable::new(mount.slow().join("run"));
    let ckpt = mount.put("run/ckpt", "weights");
    let file = fs::File::open(&ckpt).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| file.sync_all());
        until("the order is held", || first_line(&mount).contains("HELD: "));
        assert_eq!(dlio(&["set-aside"], &ckpt).0, 0);
        assert_eq!(errno(waiting.join().unwrap()), Errno::EIO, "the one that waits");
    });
    assert_eq!(errno(file.sync_all()), Errno::EIO, "a later one");
}

#[test]
fn what_the_slow_tier_refuses_for_good_is_set_aside_and_everything_else_arrives() {
    needs!(MOUNTS);
    let mut mount = Mount::with(&["settle=0s"], |slow| fs::create_dir(slow.join("run")).unwrap());
    let poison = Immutable::new(mount.slow().join("run"));
    mount.put("run/ckpt", "weights");
    mount.put("later", "behind it");
    until("the order is held", || first_line(&mount).contains("HELD: "));
    assert!(first_line(&mount).contains("or, as the last resort, dlio-fs set-aside PATH"), "{}", first_line(&mount));

    let ckpt = mount.at("run/ckpt");
    let would = "kept: /run/ckpt\n/run/ckpt: 1 change would leave the order; on the fast tier only: 1 name, 7 B";
    assert_eq!(dlio(&["set-aside", "--dry-run"], &ckpt), (0, would.into(), String::new()));
    assert!(!mount.slow().join("later").exists());
    let (code, out, err) = dlio(&["set-aside", "--json"], &ckpt);
    let said: serde_json::Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out} {err}"));
    assert_eq!((code, &said["kept"][0]["path"]), (0, &"/run/ckpt".into()), "{err}");
    let saved = Path::new(said["saved"].as_str().unwrap()).join("run/ckpt");
    assert_eq!(fs::read(saved).unwrap(), b"weights");

    let safe = "SAFE: everything is on the slow tier, except 1 name set aside (7 B)";
    until("it goes on", || first_line(&mount) == safe);
    assert_eq!(fs::read(mount.slow().join("later")).unwrap(), b"behind it");
    let (code, out, err) = dlio(&["drain"], &mount.root());
    let aside = "1 name set aside (7 B): not on the slow tier; dlio-fs queue lists it";
    assert!(code == 0 && err.contains(aside), "{code} {out} {err}");
    let (code, out, _) = dlio(&["queue"], &mount.root());
    assert_eq!(
        (code, out.as_str()),
        (0, "nothing is pending\n\n1 name set aside: on the fast tier, and not on the way\n  /run/ckpt")
    );

    mount.stop();
    let (code, out, _) = dlio(&["fsck"], &mount.fast());
    assert!(code == 0 && out.contains("/run/ckpt") && out.contains("an operator has set it aside"), "{code} {out}");
    mount.start();
    assert_eq!((fs::read(&ckpt).unwrap(), first_line(&mount)), (b"weights".to_vec(), safe.to_owned()));
    let state = xattr::get(&ckpt, "user.dlio.state").unwrap();
    assert_eq!(state.as_deref(), Some(&b"saved"[..]));

    drop(poison);
    fs::OpenOptions::new().append(true).open(&ckpt).unwrap().write_all(b" and more").unwrap();
    mount.sync();
    assert_eq!(fs::read(mount.slow().join("run/ckpt")).unwrap(), b"weights and more");
    assert_eq!(first_line(&mount), "SAFE: everything is on the slow tier");
}
