# Everything was deleted, and no checkpoint knows of it yet: whoever joins gets what there was, and then what became of it.
cluster of 1
add likes 1 ids a to 20 at node 1 -> 20
add views 1 id a at node 1 -> 1
checkpoint node 1
clear at node 1 -> 2
add likes 1 id b at node 1 -> 1
join node 2
join node 3
settle
all replicas agree
kill node 1
read likes at node 3 -> 1
read views at node 2 -> 0
# Request ids outlive the counters.
add likes 1 id a20 at node 2 -> 20 again
add likes 1 id b at node 3 -> 1 again
