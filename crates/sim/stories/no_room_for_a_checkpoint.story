# A replica stands still for want of room. What is taken away from it meanwhile is gone for good: nothing that it had still to
# do happens to the partition afterwards.
cluster of 4
call full a follower of likes
add likes 1 id a at node 1 -> 1
fill the cold store of full
# Far more log than there may be without a checkpoint.
add likes-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx 1 ids a to 1200 at node 1 -> 1200
join node 5
wait 60 s
free the cold store of full
settle
all replicas agree
read likes at node 5 -> 1
