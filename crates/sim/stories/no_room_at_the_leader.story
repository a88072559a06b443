# A leader whose disk is full does not hear who leads after it. Who asks it is served all the same, by the next one.
cluster of 3
call full the leader of likes
call other a follower of likes
add likes 1 id a at full -> 1
fill the log of full
fill the cold store of full
add likes-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx 1 ids a to 300 at other -> 300
wait 10 s
add likes 1 id b at full -> 2
read likes at full -> 2
free the log of full
free the cold store of full
settle
add likes 1 id c at full -> 3
all replicas agree
