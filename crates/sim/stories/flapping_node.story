# A node that comes and goes deposes nobody: it asks before it stands, and those who hear their leader say no.
cluster of 3
call flapping a follower of likes
add likes 1 id a at flapping -> 1
note leaders but of flapping
cut flapping from all for 300 ms, 10 times
leaders are as noted
cut flapping from all for 2 s, 10 times
leaders are as noted
add likes 1 id b at flapping -> 2
leaders are as noted
all replicas agree
