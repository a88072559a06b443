# A node joins and takes its share, ids and all, while others count.
cluster of 3
add likes 1 ids a to 20 at node 1 -> 20
add views 1 ids a to 20 at node 2 -> 20
join node 4
add likes 1 id b at node 2 -> 21
settle
partitions of node 4 -> 6
add likes 1 id a20 at node 4 -> 20 again
join node 5
add views 1 id b at node 5 -> 21
settle
partitions of node 5 -> 4
add likes 1 id a20 at node 4 -> 20 again
add views 1 id a1 at node 5 -> 1 again
read likes at node 5 -> 21
all replicas agree

# And leaves again.
remove node 4
settle
kill node 4
read likes at node 5 -> 21
read views at node 1 -> 21
add likes 1 id b at node 3 -> 21 again
all replicas agree
