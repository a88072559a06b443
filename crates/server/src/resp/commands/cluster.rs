//! CLUSTER, READONLY, ROLE, WAIT: what a server without cluster and replicas says.

use quipu_counting::slot::slot;
use quipu_wire::commands::Command;
use quipu_wire::resp::{Arguments, Encoder, errors};

use super::{Drafted, integer};

/// Answers these commands. The slot of a key is a matter of the key alone; for all else there is no cluster.
pub fn answer(command: Command, arguments: Arguments<'_, '_>, encoder: &mut Encoder<'_>) -> Drafted {
    match command {
        Command::ClusterKeySlot => encoder.integer(slot(arguments.get(2).unwrap_or_default()).into()),
        // A master without replicas; offsets of replication are not kept.
        Command::Role => {
            encoder.array(3);
            encoder.bulk(b"master");
            encoder.integer(0);
            encoder.array(0);
        }
        Command::Wait => wait(arguments, encoder)?,
        _ => return Err(errors::CLUSTER_DISABLED.into()),
    }
    Ok(())
}

/// How many replicas have everything. There are none, and none will come while one waits.
fn wait(arguments: Arguments<'_, '_>, encoder: &mut Encoder<'_>) -> Drafted {
    let [_, count, timeout] = arguments.first().unwrap_or_default();
    integer(count)?;
    if integer(timeout).map_err(|_| errors::TIMEOUT_NOT_AN_INTEGER)? < 0 {
        return Err(errors::TIMEOUT_NEGATIVE.into());
    }
    encoder.integer(0);
    Ok(())
}
