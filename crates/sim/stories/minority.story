# A side without a majority acknowledges nothing; what it was asked counts once, whoever is asked again.
cluster of 3
call old the leader of likes
call other a follower of likes
add likes 1 id a at old -> 1
cut old from all

# Its own log has it, but nobody else's: nobody knows what will become of it.
add likes 10 id b at old -> outcome-unknown
# A read has no outcome that could be unknown.
read likes at old -> no-quorum

# The others have elected one of them.
add likes 100 id c at other -> 101
heal
settle
read likes at old -> 101
add likes 10 id b at old -> 111
add likes 10 id b at other -> 111 again
add likes 10 id b at node 1 -> 111 again
read likes at node 3 -> 111
all replicas agree
