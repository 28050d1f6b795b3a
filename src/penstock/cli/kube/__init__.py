"""`kubectl penstock`: a Cluster seen, judged and reached through the Kubernetes API.

    choice ─▶ snapshot ─▶ status, why (pure) ─▶ picture, report
         └──▶ reach ─▶ forward: ports of this machine that lead to broker pods

What belongs here: whatever needs the Kubernetes API. What never may: changes to a Cluster beyond an
annotation, which is its owner's to make; commands that work without Kubernetes as well, which
stand beside this room and come here through `reach` only. Start reading at `commands.py`.
"""
