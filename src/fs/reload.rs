//! The configuration of a running mount: shown in `.dlio/config`, replaced by a reload.
//!
//! The code that makes the mount applies a new configuration; this file reads the file again, for `control` and SIGHUP
//! alike.

use parking_lot::Mutex;
use tracing::{info, warn};

use crate::config::{Config, Reloaded, Settings};
use crate::error::{Error, Result};
use crate::path::Show as _;
use crate::tiers::disk::held::read_file;

/// Applies a configuration.
type Apply = Box<dyn Fn(&Config) -> Result<()> + Send + Sync>;

/// The settings in force.
#[derive(derive_more::Debug)]
#[debug("LiveSettings({settings:?})")]
pub struct LiveSettings {
    settings: Mutex<Settings>,
    apply: Apply,
}

impl LiveSettings {
    /// `apply` applies a configuration at a reload.
    pub fn new(settings: Settings, apply: impl Fn(&Config) -> Result<()> + Send + Sync + 'static) -> Self {
        LiveSettings { settings: Mutex::new(settings), apply: Box::new(apply) }
    }

    /// The text of `.dlio/config`.
    pub(super) fn text(&self) -> String {
        self.settings.lock().text()
    }

    /// Whether there is a configuration file to read again.
    pub fn has_file(&self) -> bool {
        self.settings.lock().file().is_some()
    }

    /// Reads the configuration file again. A broken file changes nothing.
    pub fn reload(&self) -> Result<Reloaded> {
        let done = self.try_reload();
        match &done {
            Ok(reloaded) => info!(%reloaded, "configuration read again"),
            Err(error) => warn!(%error, "configuration not read again; nothing changed"),
        }
        done
    }

    /// Changes values like options of `mount`. An error in one changes nothing.
    pub fn change(&self, options: &[String]) -> Result<Reloaded> {
        let mut settings = self.settings.lock();
        let (new, reloaded) = settings.changed(options)?;
        (self.apply)(&new.config())?;
        *settings = new;
        info!(%reloaded, "configuration changed");
        Ok(reloaded)
    }

    fn try_reload(&self) -> Result<Reloaded> {
        let file = self.settings.lock().file().cloned();
        let Some(file) = file else {
            let remedy = "change a value with `dlio-fs reload -o key=value`, or mount with --config FILE";
            return Err(Error::refused("this mount has no configuration file", remedy));
        };
        // Without the lock: the file may be on a file system that hangs. A user may have replaced it by a link to what
        // only root may read, and an error message would show some of it.
        let text = read_file(&file).map_err(|e| {
            Error::refused(format!("config file {}: {e}", file.shown()), "nothing changed; make it readable text")
        })?;
        let mut settings = self.settings.lock();
        let (new, reloaded) = settings.reloaded(&text)?;
        (self.apply)(&new.config())?;
        *settings = new;
        Ok(reloaded)
    }
}
