-- What must never be found: a name, and how to look for it. Constraints keep the rest.

-- groups without exactly `size` trajectories, numbered from 0
SELECT g.id
FROM rollout_group g
LEFT JOIN trajectory t ON t.group_id = g.id
GROUP BY g.id, g.size
HAVING count(t.id) <> g.size OR min(t.member) <> 0 OR max(t.member) <> g.size - 1;

-- runs with a hole in the numbers of their groups
SELECT run_id
FROM rollout_group
GROUP BY run_id
HAVING min(ordinal) <> 0 OR max(ordinal) <> count(*) - 1;

-- trajectories with a hole in the numbers of their turns
SELECT trajectory_id
FROM turn
GROUP BY trajectory_id
HAVING min(ordinal) <> 0 OR max(ordinal) <> count(*) - 1;

-- runs with a hole in the numbers of their updates
SELECT run_id
FROM train_step
GROUP BY run_id
HAVING min(step) <> 1 OR max(step) <> count(*);

-- runs whose policy versions are not the base and one per update
SELECT v.run_id
FROM policy_version v
LEFT JOIN train_step s ON s.policy_out_id = v.id
GROUP BY v.run_id
HAVING count(*) <> count(s.step) + 1 OR min(v.step) <> 0 OR max(v.step) <> count(*) - 1;

-- updates whose policy versions are not their own
SELECT 'run ' || s.run_id || ' step ' || s.step
FROM train_step s
JOIN policy_version i ON i.id = s.policy_in_id
JOIN policy_version o ON o.id = s.policy_out_id
WHERE o.step <> s.step OR i.step <> s.step - 1 OR o.run_id <> s.run_id OR i.run_id <> s.run_id;

-- finished groups with open trajectories, or open groups without
SELECT g.id
FROM rollout_group g
JOIN trajectory t ON t.group_id = g.id
GROUP BY g.id, g.state
HAVING (g.state = 'open') <> (sum(CASE WHEN t.state = 'open' THEN 1 ELSE 0 END) > 0);

-- complete groups without any reward, or failed ones with
SELECT g.id
FROM rollout_group g
JOIN trajectory t ON t.group_id = g.id
LEFT JOIN turn u ON u.trajectory_id = t.id
WHERE g.state <> 'open'
GROUP BY g.id, g.state
HAVING (g.state = 'complete') <> (count(u.reward) > 0);

-- closed trajectories with unsettled turns or without turns
SELECT t.id
FROM trajectory t
LEFT JOIN turn u ON u.trajectory_id = t.id
WHERE t.state = 'closed'
GROUP BY t.id
HAVING count(u.settled_at) <> count(u.id) OR count(u.id) = 0;

-- turns that follow an unsettled one
SELECT u.id
FROM turn u
JOIN turn earlier ON earlier.trajectory_id = u.trajectory_id AND earlier.ordinal = u.ordinal - 1
WHERE earlier.state <> 'settled';

-- turns without tokens
SELECT u.id
FROM turn u
LEFT JOIN tokens k ON k.turn_id = u.id
WHERE k.turn_id IS NULL;

-- turns whose evaluation is of another kernel or problem
SELECT u.id
FROM turn u
JOIN evaluation e ON e.id = u.evaluation_id
JOIN trajectory t ON t.id = u.trajectory_id
JOIN rollout_group g ON g.id = t.group_id
WHERE e.kernel_sha <> u.kernel_sha OR e.problem_id <> g.problem_id OR u.kernel_sha IS NULL;

-- turns with another outcome than their evaluation
SELECT u.id
FROM turn u
JOIN evaluation e ON e.id = u.evaluation_id
WHERE u.outcome IS NOT NULL AND (e.outcome IS NULL OR e.outcome <> u.outcome);

-- turns with an outcome that no evaluation found
SELECT id
FROM turn
WHERE outcome IS NOT NULL AND outcome <> 'unchanged' AND evaluation_id IS NULL;

-- turns with samples of which not exactly one is chosen, or which name another kernel than the chosen one
SELECT u.id
FROM turn u
JOIN turn_sample s ON s.turn_id = u.id
WHERE u.state = 'settled'
GROUP BY u.id, u.kernel_sha, u.evaluation_id
HAVING sum(s.chosen) <> 1 OR max(CASE WHEN s.chosen = 1 THEN s.kernel_sha END) <> u.kernel_sha
    OR max(CASE WHEN s.chosen = 1 THEN s.evaluation_id END) <> u.evaluation_id
    OR min(CASE WHEN s.outcome IS NULL AND s.fault IS NULL THEN 0 ELSE 1 END) = 0;

-- samples whose evaluation is of another kernel, or found something else
SELECT s.turn_id
FROM turn_sample s
JOIN evaluation e ON e.id = s.evaluation_id
WHERE e.kernel_sha <> s.kernel_sha OR s.kernel_sha IS NULL OR (s.outcome IS NOT NULL AND e.outcome <> s.outcome);

-- correct verdicts without times and speedup, or with impossible ones
SELECT id
FROM evaluation
WHERE outcome = 'correct'
  AND (time_ms IS NULL OR baseline_ms IS NULL OR speedup IS NULL
       OR time_ms <= 0 OR baseline_ms <= 0 OR speedup <= 0 OR speedup_low > speedup_high);

-- calls to the coder with both a reply and an error, or with neither
SELECT id
FROM coder_call
WHERE (reply_sha IS NULL) <> (error IS NOT NULL);

-- turns from a policy of another run
SELECT u.id
FROM turn u
JOIN policy_version v ON v.id = u.policy_version_id
JOIN trajectory t ON t.id = u.trajectory_id
JOIN rollout_group g ON g.id = t.group_id
WHERE v.run_id <> g.run_id;

-- turns from a policy that is not older than the update which consumed them
SELECT u.id
FROM turn u
JOIN policy_version v ON v.id = u.policy_version_id
JOIN trajectory t ON t.id = u.trajectory_id
JOIN rollout_group g ON g.id = t.group_id
WHERE v.step >= g.consumed_step;

-- groups that are finished and have no time of it, or are open and have one
SELECT id
FROM rollout_group
WHERE (state = 'open') <> (finished_at IS NULL);

-- trained turns with both an advantage and a reason to drop them, or with neither
SELECT turn_id
FROM train_sample
WHERE (advantage IS NULL) <> (drop_reason IS NOT NULL);

-- trained turns that were not settled when they were trained
SELECT s.turn_id
FROM train_sample s
JOIN turn u ON u.id = s.turn_id
WHERE u.state <> 'settled';

-- samples of an update that does not exist
SELECT s.turn_id
FROM train_sample s
LEFT JOIN train_step p ON p.run_id = s.run_id AND p.step = s.step
WHERE p.step IS NULL;

-- groups that an update consumed only in part, or that no update names
SELECT g.id
FROM rollout_group g
JOIN trajectory t ON t.group_id = g.id
JOIN turn u ON u.trajectory_id = t.id
LEFT JOIN train_sample s ON s.turn_id = u.id AND s.run_id = g.run_id
GROUP BY g.id, g.consumed_step
HAVING CASE WHEN g.consumed_step IS NULL THEN count(s.step) > 0
            ELSE count(s.step) <> count(*) OR min(s.step) <> g.consumed_step OR max(s.step) <> g.consumed_step END;

-- texts that nothing refers to
SELECT sha
FROM blob
WHERE sha NOT IN (SELECT reference_sha FROM problem
                  UNION SELECT prompt_sha FROM turn
                  UNION SELECT kernel_sha FROM turn WHERE kernel_sha IS NOT NULL
                  UNION SELECT kernel_sha FROM turn_sample WHERE kernel_sha IS NOT NULL
                  UNION SELECT kernel_sha FROM evaluation
                  UNION SELECT log_sha FROM evaluation WHERE log_sha IS NOT NULL
                  UNION SELECT request_sha FROM coder_call
                  UNION SELECT reply_sha FROM coder_call WHERE reply_sha IS NOT NULL);
