# A node that was away for too long gets a snapshot, with all request ids.
cluster of 3
call away a follower of likes
call first the leader of likes
add likes 1 id before at away -> 1
note snapshots
cut away from all
add likes 1 ids a to 40 at first -> 41
add views 1 ids a to 40 at first -> 40
checkpoint node 1
checkpoint node 2
checkpoint node 3
wait 2 s
# Not all of it is in the snapshot: some comes from the log.
add likes 1 id after at first -> 42
heal
away got a snapshot
all replicas agree

# Now it must know all of that without the one that led.
crash first
add likes 1 id before at away -> 1 again
add likes 1 id a1 at away -> 2 again
add likes 1 id a40 at away -> 41 again
add views 1 id a40 at away -> 40 again
add likes 1 id after at away -> 42 again
read likes at away -> 42
add likes 1 id new at away -> 43
