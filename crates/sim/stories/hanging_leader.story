# A leader hangs: nobody is told that it is gone, and what it was asked is asked again as soon as somebody else leads.
cluster of 3
call old the leader of likes
call other a follower of likes
call another another follower of likes
add likes 1 id a at other -> 1
cut old from all
ask w: add likes 1 id b at another
ask r: read likes at another
add likes 1 id c at other -> 2 or 3
answer to w -> 2 or 3
answer to r -> 1 or 2 or 3
read likes at other -> 3
heal
settle
read likes at old -> 3
all replicas agree
