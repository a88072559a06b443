# Whoever is asked, it is one counter. likes and views lie in different partitions.
cluster of 3
add likes 5 id a at node 1 -> 5
add likes 2 id b at node 2 -> 7
add views 1 id a at node 3 -> 1
add likes -3 id c at node 3 -> 4
read likes at node 1 -> 4
read likes at node 2 -> 4
read views at node 2 -> 1

# Asked again anywhere, the first answer comes back and nothing is counted.
add likes 5 id a at node 3 -> 5 again
add likes 2 id b at node 1 -> 7 again
read likes at node 3 -> 4
all replicas agree
