# Who was removed cannot come back, neither while it runs nor after a restart.
cluster of 4
add likes 7 id a at node 2 -> 7
add views 7 id a at node 3 -> 7
remove node 2
settle
# Nobody talks to it any more, so it acknowledges nothing, and knows why.
add likes 1 id x at node 2 -> not-a-member
read likes at node 2 -> not-a-member
join node 2 -> node 2 was removed from the cluster; invite a new node, with a new data folder
add likes 1 id b at node 1 -> 8
crash node 2
start node 2
join node 2 -> node 2 was removed from the cluster; invite a new node, with a new data folder
remove node 2 -> there is no node 2
add likes 1 id x at node 2 -> not-a-member
kill node 2
add likes 7 id a at node 3 -> 7 again
read likes at node 4 -> 8
read views at node 4 -> 7
all replicas agree
