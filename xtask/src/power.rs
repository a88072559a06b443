//! `cargo xtask torture power`: a power cut, without pulling a plug.
//!
//! quipu's data lies on a file system in an image file. Under load the file system is shut down at once, without
//! flushing its log: from then on it accepts nothing, and what was not synced is gone, as after a power cut. quipu is
//! killed, the file system is mounted again (and recovers its own log), quipu starts, and every increment it ever
//! acknowledged there must be remembered. ext4 and xfs take turns and keep their data from cut to cut.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::exactly_once::{Acknowledged, Clients, Place, prove};
use crate::interrupt::{Pending, Undo};
use crate::packages;
use crate::servers::Server;
use crate::workspace::{Binary, Scratch};

/// xfs wants 300 MB; a quipu folder has some log segments of 64 MiB.
const IMAGE_BYTES: u64 = 2 << 30;

/// Clients at the same time.
const CLIENTS: u64 = 16;

/// Answers between the start of the load and the cut, at most.
const ANSWERS_PER_CUT_MAX: u64 = 5_000;

/// Between the cut and the kill: a server that goes on acknowledging without its disk would be found out.
const SURVIVAL: Duration = Duration::from_millis(50);

/// Attempts to unmount: a killed process may hold its files for a moment.
const UNMOUNT_ATTEMPTS: u32 = 100;

/// Arguments of `torture power`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// How many power cuts
    #[arg(long, default_value_t = 20)]
    cuts: u32,
    /// Repeats the choices of a run that failed
    #[arg(long)]
    seed: Option<u64>,
    /// What quipu runs with. Anything but sync must be caught losing answers: that is the test of this test
    #[arg(long, default_value = "sync")]
    durability: String,
    #[command(flatten)]
    binary: Binary,
}

/// Cuts the power again and again.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(packages::is_root(), "mounting file systems needs root: run it with sudo");
    packages::require(packages::OF_POWER)?;
    let binary = arguments.binary.get()?;
    let seed = arguments.seed.unwrap_or_else(|| StdRng::from_os_rng().random());
    println!("{} cuts, --seed {seed}", arguments.cuts);
    let mut random = StdRng::seed_from_u64(seed);
    let folder = Scratch::new("power")?;
    let mut worlds = [World::new(folder.path(), "ext4")?, World::new(folder.path(), "xfs")?];
    for cut in 1..=arguments.cuts {
        let world = &mut worlds[cut as usize % 2];
        world
            .cut_power(&binary, &arguments.durability, cut, &mut random)
            .with_context(|| format!("cut {cut} on {}", world.disk.kind))?;
    }
    println!("{} power cuts, nothing acknowledged was lost, nothing counted twice", arguments.cuts);
    Ok(())
}

/// A disk, and everything that was ever acknowledged on it.
struct World {
    disk: Disk,
    acknowledged: Acknowledged,
}

impl World {
    fn new(folder: &Path, kind: &'static str) -> Result<World> {
        Ok(World { disk: Disk::create(folder, kind)?, acknowledged: Vec::new() })
    }

    fn cut_power(&mut self, binary: &Path, durability: &str, cut: u32, random: &mut StdRng) -> Result<()> {
        self.disk.mount()?;
        let server = Server::quipu(binary, &self.disk.mount_point, &["--durability", durability])?;
        let place = Place::new(server.resp);
        let clients = Clients::start(&place, CLIENTS, &format!("cut-{cut}"), random.random());
        let answers = random.random_range(1..=ANSWERS_PER_CUT_MAX);
        clients.wait_for_more(answers).map_err(|reason| anyhow!(reason))?;

        self.disk.shut_down()?;
        thread::sleep(SURVIVAL);
        server.kill()?;
        self.disk.unmount()?;

        self.disk.mount()?;
        let server = Server::quipu(binary, &self.disk.mount_point, &["--durability", durability])?;
        place.set(server.resp);
        let (acknowledged, retries) = clients.finish().map_err(|reason| anyhow!(reason))?;
        self.acknowledged.extend(acknowledged);
        let proof = prove(server.resp, &self.acknowledged).map_err(|reason| anyhow!(reason))?;
        server.kill()?;
        let check = Command::new(binary).arg("check").arg(self.disk.mount_point.join("data")).output()?;
        ensure!(check.status.success(), "quipu check: {}", String::from_utf8_lossy(&check.stderr));
        self.disk.unmount()?;
        println!("cut {cut} on {}: {retries} retries; {proof}", self.disk.kind);
        Ok(())
    }
}

/// A file system in an image file. Unmounted when dropped.
struct Disk {
    kind: &'static str,
    image: PathBuf,
    mount_point: PathBuf,
    /// While it is mounted.
    mounted: Option<Pending>,
}

impl Disk {
    fn create(folder: &Path, kind: &'static str) -> Result<Disk> {
        let image = folder.join(format!("{kind}.img"));
        let mount_point = folder.join(kind);
        std::fs::create_dir_all(&mount_point)?;
        File::create(&image)?.set_len(IMAGE_BYTES)?;
        call(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&image))?;
        Ok(Disk { kind, image, mount_point, mounted: None })
    }

    fn mount(&mut self) -> Result<()> {
        call(Command::new("mount").args(["-o", "loop"]).arg(&self.image).arg(&self.mount_point))?;
        self.mounted = Some(Pending::new(Undo::Unmount(self.mount_point.clone())));
        Ok(())
    }

    /// Without `-f`, which would flush the log first. Works on ext4 too, despite the name of the program.
    fn shut_down(&self) -> Result<()> {
        call(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(&self.mount_point))
    }

    fn unmount(&mut self) -> Result<()> {
        for attempt in 1.. {
            match call(Command::new("umount").arg(&self.mount_point)) {
                Ok(()) => break,
                Err(error) if attempt == UNMOUNT_ATTEMPTS => return Err(error),
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
        self.mounted = None;
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.mounted.is_some() && self.unmount().is_err() {
            // Lazily: it goes as soon as the last process lets go of it.
            let _ = call(Command::new("umount").arg("--lazy").arg(&self.mount_point));
        }
    }
}

fn call(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
