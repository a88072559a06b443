# A node lost its disk. It cannot go on as who it was; another takes its place.
cluster of 3
add likes 1 ids a to 30 at node 3 -> 30
crash node 3
empty the disk of node 3
add likes 1 id b at node 1 -> 31
start node 3
join node 3 -> another data folder is node 3; remove that node, and join by a new invitation
kill node 3
join node 4
remove node 3
settle
partitions of node 4 -> 8
read likes at node 4 -> 31
all replicas agree

# Without one that had it all from the beginning.
crash node 1
add likes 1 id a30 at node 4 -> 30 again
add likes 1 id b at node 4 -> 31 again
add likes 1 id c at node 4 -> 32
