# A node without room takes part in nothing, and goes on by itself once there is some: its replicas have not ended.
cluster of 3
call full a follower of likes
call other another follower of likes
add likes 1 id a at other -> 1
fill the log of full
fill the cold store of full
add likes-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx 1 ids a to 300 at other -> 300
add likes 1 id b at other -> 2
# What all nodes agree on is written down at once.
join node 4
wait 10 s
free the log of full
free the cold store of full
settle
all replicas agree
add likes 1 id c at full -> 3
