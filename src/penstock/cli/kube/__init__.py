"""`kubectl penstock`: a Cluster seen, judged and reached through the Kubernetes API.

    choice ─▶ snapshot ─▶ status, why (pure) ─▶ picture, report
         └──▶ reach ─▶ forward: ports of this machine that lead to broker pods

What belongs here: everything that needs the Kubernetes API. What never does: changes to a Cluster
other than an annotation, because its owner makes them; commands that also work without Kubernetes,
which are in the parent package and use this one only through `reach`. Start reading at
`commands.py`.
"""
