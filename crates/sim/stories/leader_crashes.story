# Another leads, and knows every id. The one that crashed comes back and knows what it missed.
cluster of 3
call old the leader of likes
call other a follower of likes
add likes 1 ids first to 20 at old -> 20
crash old
add likes 1 id first1 at old -> it is down
add likes 1 id first1 at other -> 1 again
add likes 1 id first20 at other -> 20 again
add likes 1 ids second to 20 at other -> 40
start old
read likes at old -> 40
add likes 1 id second7 at old -> 27 again
settle
add likes 1 id second20 at old -> 40 again
add likes 2 id third at old -> 42
all replicas agree

# Power cuts of all of them take nothing back.
crash node 1
crash node 2
crash node 3
start node 1
start node 2
start node 3
settle
read likes at node 2 -> 42
add likes 1 id first3 at node 1 -> 3 again
all replicas agree
