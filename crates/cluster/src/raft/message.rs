//! What the replicas of a group say to each other.
//!
//! ```text
//! append   := vote, maybe log_id before, entries:v entry*, maybe log_id committed
//!          -> 0 success | 1 maybe log_id: up to here | 2 conflict | 3 vote: a higher one
//! ask      := vote, maybe log_id last, transfer:1          a vote, or whether one would be given
//!          -> vote, given:1, maybe log_id last
//! transfer := vote, node:v, maybe log_id last              lead, from me
//!          -> 0 yes | 1 no
//! ```

use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest, VoteResponse,
};
use quipu_wire::entry::{Malformed, Reader, put_varint};

use super::codec::{
    put_entry, put_log_id, put_maybe, put_vote, read_entry, read_log_id, read_maybe, read_vote,
};
use super::types::Types;

/// Appends a request to append.
pub fn put_append(out: &mut Vec<u8>, request: &AppendEntriesRequest<Types>) {
    put_vote(out, &request.vote);
    put_maybe(out, request.prev_log_id.as_ref(), put_log_id);
    put_varint(out, request.entries.len() as u64);
    request.entries.iter().for_each(|entry| put_entry(out, entry));
    put_maybe(out, request.leader_commit.as_ref(), put_log_id);
}

/// Reads one.
pub fn read_append(reader: &mut Reader<'_>) -> Result<AppendEntriesRequest<Types>, Malformed> {
    let vote = read_vote(reader)?;
    let prev_log_id = read_maybe(reader, read_log_id)?;
    let count = reader.count()?;
    let entries = (0..count).map(|_| read_entry(reader)).collect::<Result<_, _>>()?;
    Ok(AppendEntriesRequest { vote, prev_log_id, entries, leader_commit: read_maybe(reader, read_log_id)? })
}

/// Appends the answer to it.
pub fn put_appended(out: &mut Vec<u8>, response: &AppendEntriesResponse<Types>) {
    match response {
        AppendEntriesResponse::Success => out.push(0),
        AppendEntriesResponse::PartialSuccess(log_id) => {
            out.push(1);
            put_maybe(out, log_id.as_ref(), put_log_id);
        }
        AppendEntriesResponse::Conflict => out.push(2),
        AppendEntriesResponse::HigherVote(vote) => {
            out.push(3);
            put_vote(out, vote);
        }
    }
}

/// Reads it.
pub fn read_appended(reader: &mut Reader<'_>) -> Result<AppendEntriesResponse<Types>, Malformed> {
    Ok(match reader.byte()? {
        0 => AppendEntriesResponse::Success,
        1 => AppendEntriesResponse::PartialSuccess(read_maybe(reader, read_log_id)?),
        2 => AppendEntriesResponse::Conflict,
        3 => AppendEntriesResponse::HigherVote(read_vote(reader)?),
        _ => return Err(Malformed("unknown answer; sent by a newer version?")),
    })
}

/// Appends a request for a vote.
pub fn put_ask(out: &mut Vec<u8>, request: &VoteRequest<Types>) {
    put_vote(out, &request.vote);
    put_maybe(out, request.last_log_id.as_ref(), put_log_id);
    out.push(u8::from(request.leadership_transfer));
}

/// Reads one.
pub fn read_ask(reader: &mut Reader<'_>) -> Result<VoteRequest<Types>, Malformed> {
    let mut request = VoteRequest::new(read_vote(reader)?, read_maybe(reader, read_log_id)?);
    request.leadership_transfer = reader.flag()?;
    Ok(request)
}

/// Appends the answer to it.
pub fn put_given(out: &mut Vec<u8>, response: &VoteResponse<Types>) {
    put_vote(out, &response.vote);
    out.push(u8::from(response.vote_granted));
    put_maybe(out, response.last_log_id.as_ref(), put_log_id);
}

/// Reads it.
pub fn read_given(reader: &mut Reader<'_>) -> Result<VoteResponse<Types>, Malformed> {
    let (vote, vote_granted) = (read_vote(reader)?, reader.flag()?);
    Ok(VoteResponse { vote, vote_granted, last_log_id: read_maybe(reader, read_log_id)? })
}

/// Appends a request to lead.
pub fn put_transfer(out: &mut Vec<u8>, request: &TransferLeaderRequest<Types>) {
    put_vote(out, request.from_leader());
    put_varint(out, *request.to_node_id());
    put_maybe(out, request.last_log_id(), put_log_id);
}

/// Reads one.
pub fn read_transfer(reader: &mut Reader<'_>) -> Result<TransferLeaderRequest<Types>, Malformed> {
    let (vote, node) = (read_vote(reader)?, reader.varint()?);
    Ok(TransferLeaderRequest::new(vote, node, read_maybe(reader, read_log_id)?))
}
