# Two of three are gone: the one that is left says so, also if it led.
cluster of 3
call left the leader of likes
call other a follower of likes
add likes 1 id a at left -> 1
cut node 1 from all
cut node 2 from all
cut node 3 from all
add likes 10 id b at left -> outcome-unknown
# It has asked the others, and lost its question: they may still hear it.
add likes 10 id c at left -> outcome-unknown
read likes at left -> no-quorum
read likes at other -> no-leader
add likes 10 id c at other -> outcome-unknown
heal
settle
# Whoever leads now may have had b in its log, or not. Asked again, both count once.
add likes 10 id b at other -> 11 or 11 again
add likes 10 id c at left -> 21
read likes at node 2 -> 21
all replicas agree
