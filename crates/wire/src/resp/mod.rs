//! The Redis protocol, versions 2 and 3, as bytes in and bytes out. No socket is known here.
//!
//! | file | direction |
//! |---|---|
//! | [`decode`] | client to server: finds commands in what a socket gave; `inline` splits hand-typed lines |
//! | [`pipeline`] | what was found: arguments as places in the buffer |
//! | [`encode`] | server to client: writes replies; and the commands a client writes |
//! | [`reply`] | server to client, read back: our command line, load generator and tests |
//! | [`errors`] | the error texts client libraries look for |

pub mod decode;
pub mod encode;
pub mod errors;
mod inline;
pub mod pipeline;
pub mod reply;

pub use decode::{Decoder, Limits, ProtocolError};
pub use encode::{Encoder, encode_command};
pub use pipeline::{Arguments, Pipeline};
pub use reply::{ReplyDecoder, ReplyError, Value, skip_reply};

/// The version of the protocol a connection speaks; `HELLO` changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// Five types of reply. Every connection begins here.
    #[default]
    Resp2,
    /// Adds maps, sets, doubles, booleans, one null, and pushes.
    Resp3,
}

impl Protocol {
    /// The number `HELLO` takes and reports.
    pub const fn number(self) -> i64 {
        match self {
            Protocol::Resp2 => 2,
            Protocol::Resp3 => 3,
        }
    }

    /// The version `HELLO <number>` asks for, if there is one.
    pub const fn from_number(number: i64) -> Option<Protocol> {
        match number {
            2 => Some(Protocol::Resp2),
            3 => Some(Protocol::Resp3),
            _ => None,
        }
    }
}
