# A leader whose clock is ahead shows that a counter has expired: so it has, whoever leads next.
cluster of 3
call old the leader of likes
call other a follower of likes
add likes 5 id a at other -> 5
expire likes in 30 s at other -> 5
read likes at old -> 5
set the clock of old ahead by 60 s
read likes at old -> 0
cut old from all
read likes at other -> 0
heal
settle
all replicas agree
