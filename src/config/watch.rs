//! Tells when the file may have changed: written in place, renamed over, or reached through a symlink that was swapped, as Kubernetes
//! does. Watches come and go with what they watch, so the notices of the kernel only make it quick; a look at the file every
//! second is what a change cannot escape. Whether the bytes differ is for the reader of the file to find out.

use super::load;
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::{sleep, timeout};

/// Well within the two seconds in which a change is taken up.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A change comes as several events (truncate, write, close; or rename and swap): wait until they have gone by.
const SETTLE: Duration = Duration::from_millis(100);

/// The digest of the file's bytes, as `load::hash` makes it.
pub fn fingerprint(path: &Path) -> io::Result<String> {
    Ok(load::hash(&fs::read(path)?))
}

/// As many links as Linux follows.
const LINKS_MAX: usize = 40;

/// Says `()` each time the file may have changed, and now and then when it has not: compare fingerprints. Watch first and read
/// the file then, so that no change falls between. Ends when the receiver is dropped; needs a tokio runtime around it.
#[must_use]
pub fn watch(path: PathBuf) -> Receiver<()> {
    // One notice that is waiting stands for all that come meanwhile.
    let (changed, receiver) = mpsc::channel(1);
    let (notice, notices) = mpsc::channel(1);
    let file = WatchedFile::new(path, notice);
    tokio::spawn(file.follow(notices, changed));
    receiver
}

/// What a look at the file tells: another value means another file, or another content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    target: PathBuf,
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Look {
    /// `None`: it is not there at the moment.
    #[must_use]
    pub fn at(path: &Path) -> Option<Self> {
        let target = fs::canonicalize(path).ok()?;
        let file = fs::metadata(&target).ok()?;
        Some(Self {
            target,
            device: file.dev(),
            inode: file.ino(),
            size: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        })
    }
}

struct WatchedFile {
    path: PathBuf,
    /// `None`: the kernel gives no watches (any more); looking remains.
    watcher: Option<RecommendedWatcher>,
    folders: BTreeSet<PathBuf>,
    seen: Option<Look>,
}

impl WatchedFile {
    fn new(path: PathBuf, notice: Sender<()>) -> Self {
        let watcher = notify::recommended_watcher(move |_event| {
            // Full: a notice is waiting already.
            let _ = notice.try_send(());
        });
        if let Err(error) = &watcher {
            tracing::warn!(%error, "no file watches; the configuration file is looked at every second");
        }
        let seen = Look::at(&path);
        let mut file = Self { path, watcher: watcher.ok(), folders: BTreeSet::new(), seen };
        file.watch_folders();
        file
    }

    async fn follow(mut self, mut notices: Receiver<()>, changed: Sender<()>) {
        // A write in the same tick of the file system's clock as the last look would look the same: tell once more, later.
        let mut again = false;
        loop {
            tokio::select! {
                () = changed.closed() => return,
                () = self.stirred(&mut notices) => {}
            }
            let look = Look::at(&self.path);
            let differs = look.is_some() && look != self.seen;
            if differs {
                self.seen = look;
                self.watch_folders();
            }
            if differs || again {
                again = differs;
                if let Err(mpsc::error::TrySendError::Closed(())) = changed.try_send(()) {
                    return;
                }
            }
        }
    }

    /// Waits for events and until they have gone by, or for the next look.
    async fn stirred(&self, notices: &mut Receiver<()>) {
        // Without a watcher the channel is closed, and would answer at once for ever.
        let event = async {
            match &self.watcher {
                Some(_) => notices.recv().await,
                None => std::future::pending().await,
            }
        };
        if timeout(LOOK_EVERY, event).await.is_ok() {
            sleep(SETTLE).await;
            while notices.try_recv().is_ok() {}
        }
    }

    /// Watches every folder on the way to the file, through all its symlinks; lets go of those that are no longer on it.
    fn watch_folders(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        let wanted = folders_to(&self.path);
        for folder in self.folders.difference(&wanted) {
            // It may be gone, and its watch with it.
            let _ = watcher.unwatch(folder);
        }
        // Where a folder cannot be watched, looking remains.
        self.folders = wanted
            .into_iter()
            .filter(|folder| {
                self.folders.contains(folder) || watcher.watch(folder, RecursiveMode::NonRecursive).is_ok()
            })
            .collect();
    }
}

/// The folders whose entries decide which file `path` is: its own, that of each link on the way, and that of the file itself.
fn folders_to(path: &Path) -> BTreeSet<PathBuf> {
    let mut folders = BTreeSet::new();
    let mut next = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        let folder =
            next.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_path_buf();
        folders.extend(fs::canonicalize(&folder));
        match fs::read_link(&next) {
            Ok(target) => next = folder.join(target),
            Err(_) => break,
        }
    }
    folders.extend(fs::canonicalize(path).ok().and_then(|target| Some(target.parent()?.to_path_buf())));
    folders
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Waits until a notice comes after which the file reads `text`; a minute means never.
    async fn taken_up(notices: &mut Receiver<()>, path: &Path, text: &str) {
        let arrival = async {
            notices.recv().await.unwrap();
            while fs::read_to_string(path).unwrap() != text {
                notices.recv().await.unwrap();
            }
        };
        timeout(Duration::from_mins(1), arrival).await.unwrap();
    }

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    #[test]
    fn a_file_written_in_place_is_noticed_twice() {
        run(async {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("staunch.toml");
            fs::write(&path, "0").unwrap();
            let mut notices = watch(path.clone());
            for text in ["1", "2"] {
                fs::write(&path, text).unwrap();
                taken_up(&mut notices, &path, text).await;
            }
        });
    }

    #[test]
    fn a_file_renamed_over_the_old_one_is_noticed_twice() {
        run(async {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("staunch.toml");
            fs::write(&path, "0").unwrap();
            let mut notices = watch(path.clone());
            for text in ["1", "2"] {
                let fresh = folder.path().join("fresh");
                fs::write(&fresh, text).unwrap();
                fs::rename(&fresh, &path).unwrap();
                taken_up(&mut notices, &path, text).await;
            }
        });
    }

    /// As the kubelet does it: a new folder, a new `..data` renamed over the old one, the old folder removed.
    fn publish(mount: &Path, version: &str) {
        let data = mount.join(format!("..{version}"));
        fs::create_dir(&data).unwrap();
        fs::write(data.join("staunch.toml"), version).unwrap();
        symlink(data.file_name().unwrap(), mount.join("..data_tmp")).unwrap();
        let old = fs::canonicalize(mount.join("..data"));
        fs::rename(mount.join("..data_tmp"), mount.join("..data")).unwrap();
        if let Ok(old) = old {
            fs::remove_dir_all(old).unwrap();
        }
    }

    #[test]
    fn a_symlink_swap_is_noticed_twice_also_through_another_link() {
        run(async {
            let mount = tempfile::tempdir().unwrap();
            let elsewhere = tempfile::tempdir().unwrap();
            publish(mount.path(), "0");
            symlink("..data/staunch.toml", mount.path().join("staunch.toml")).unwrap();
            let link = elsewhere.path().join("link.toml");
            symlink(mount.path().join("staunch.toml"), &link).unwrap();
            let mut direct = watch(mount.path().join("staunch.toml"));
            let mut indirect = watch(link.clone());
            for version in ["1", "2"] {
                publish(mount.path(), version);
                taken_up(&mut direct, &link, version).await;
                taken_up(&mut indirect, &link, version).await;
            }
        });
    }

    #[test]
    fn a_change_without_any_event_is_found_by_looking() {
        run(async {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("staunch.toml");
            fs::write(&path, "0").unwrap();
            let seen = Look::at(&path);
            let blind = WatchedFile { path: path.clone(), watcher: None, folders: BTreeSet::new(), seen };
            let (changed, mut notices) = mpsc::channel(1);
            tokio::spawn(blind.follow(mpsc::channel(1).1, changed));
            fs::write(&path, "12").unwrap();
            taken_up(&mut notices, &path, "12").await;
        });
    }

    #[test]
    fn the_fingerprint_is_of_the_bytes_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&one, "same").unwrap();
        fs::write(&other, "same").unwrap();
        assert_eq!(fingerprint(&one).unwrap(), fingerprint(&other).unwrap());
        fs::write(&other, "not").unwrap();
        assert_ne!(fingerprint(&one).unwrap(), fingerprint(&other).unwrap());
    }
}
