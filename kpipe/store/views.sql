-- Views for people with a SQL prompt: the same text on SQLite and Postgres, rebuilt by every upgrade.

-- One row per turn, with everything that one usually joins for it.
CREATE VIEW v_turn AS
SELECT u.id AS turn_id, r.name AS run, g.ordinal AS group_ordinal, p.suite, p.level, p.name AS problem,
       t.member, u.ordinal AS turn, u.state, v.step AS policy_step, u.suggestion, u.outcome, e.speedup,
       e.speedup_low, e.speedup_high, e.time_ms, e.baseline_ms, u.reward, u.fault, u.kernel_sha,
       u.prompt_sha, u.evaluation_id, u.trajectory_id, g.id AS group_id, r.id AS run_id,
       p.id AS problem_id, k.prompt_len AS prompt_tokens, k.completion_len AS completion_tokens,
       k.finish_reason, u.created_at, u.settled_at
FROM turn u
JOIN trajectory t ON t.id = u.trajectory_id
JOIN rollout_group g ON g.id = t.group_id
JOIN run r ON r.id = g.run_id
JOIN problem p ON p.id = g.problem_id
JOIN policy_version v ON v.id = u.policy_version_id
JOIN tokens k ON k.turn_id = u.id
LEFT JOIN evaluation e ON e.id = u.evaluation_id;

CREATE VIEW v_trajectory AS
SELECT t.id AS trajectory_id, r.name AS run, g.ordinal AS group_ordinal, p.name AS problem, t.member,
       t.state, count(u.turn_id) AS turns, sum(u.reward) AS reward, count(u.fault) AS faults,
       max(CASE WHEN u.outcome = 'correct' THEN u.speedup END) AS best_speedup
FROM trajectory t
JOIN rollout_group g ON g.id = t.group_id
JOIN run r ON r.id = g.run_id
JOIN problem p ON p.id = g.problem_id
LEFT JOIN v_turn u ON u.trajectory_id = t.id
GROUP BY t.id, r.name, g.ordinal, p.name, t.member, t.state;

CREATE VIEW v_group AS
SELECT g.id AS group_id, r.name AS run, g.ordinal, p.name AS problem, g.state, g.size, g.consumed_step,
       count(u.turn_id) AS turns, count(u.fault) AS faults, min(u.policy_step) AS oldest_policy_step,
       avg(u.reward) AS mean_reward, min(u.reward) AS lowest_reward, max(u.reward) AS highest_reward,
       max(CASE WHEN u.outcome = 'correct' THEN u.speedup END) AS best_speedup,
       g.created_at, g.finished_at
FROM rollout_group g
JOIN run r ON r.id = g.run_id
JOIN problem p ON p.id = g.problem_id
LEFT JOIN v_turn u ON u.group_id = g.id
GROUP BY g.id, r.name, g.ordinal, p.name, g.state, g.size, g.consumed_step, g.created_at, g.finished_at;

-- The fastest correct kernel of every problem, run by run.
CREATE VIEW v_best AS
SELECT run, suite, level, problem, speedup, speedup_low, speedup_high, baseline_ms, time_ms, suggestion,
       policy_step, kernel_sha, evaluation_id, turn_id, run_id, problem_id
FROM (SELECT v_turn.*, row_number() OVER (PARTITION BY run_id, problem_id
                                          ORDER BY speedup DESC, turn_id) AS place
      FROM v_turn WHERE outcome = 'correct') ranked
WHERE place = 1;

-- The ten fastest correct kernels of every problem on every kind of device, over all runs.
CREATE VIEW v_leaderboard AS
SELECT suite, level, problem, device, harness, place, speedup, speedup_low, speedup_high, baseline_ms,
       time_ms, kernel_sha, evaluation_id
FROM (SELECT p.suite, p.level, p.name AS problem, e.device, e.harness, e.speedup, e.speedup_low,
             e.speedup_high, e.baseline_ms, e.time_ms, e.kernel_sha, e.id AS evaluation_id,
             row_number() OVER (PARTITION BY e.problem_id, e.device, e.harness
                                ORDER BY e.speedup DESC, e.id) AS place
      FROM evaluation e JOIN problem p ON p.id = e.problem_id
      WHERE e.outcome = 'correct') ranked
WHERE place <= 10;

CREATE VIEW v_queue AS
SELECT e.id AS evaluation_id, p.name AS problem, e.device, e.state, e.rank, e.attempt, e.failures,
       e.queued_at, e.not_before, e.lease_until, w.host, w.pid, e.kernel_sha
FROM evaluation e
JOIN problem p ON p.id = e.problem_id
LEFT JOIN worker w ON w.id = e.worker_id
WHERE e.state IN ('queued', 'running');

-- An answer that several turns of a run share is counted once.
CREATE VIEW v_coder_cost AS
SELECT r.name AS run, c.model, count(*) AS calls,
       sum(CASE WHEN c.reply_sha IS NULL THEN 1 ELSE 0 END) AS failed,
       sum(c.tokens_in) AS tokens_in, sum(c.tokens_out) AS tokens_out, sum(c.usd) AS usd,
       sum(c.seconds) AS seconds, sum(c.attempts) AS attempts
FROM (SELECT DISTINCT g.run_id, u.coder_call_id
      FROM turn u
      JOIN trajectory t ON t.id = u.trajectory_id
      JOIN rollout_group g ON g.id = t.group_id) used
JOIN run r ON r.id = used.run_id
JOIN coder_call c ON c.id = used.coder_call_id
GROUP BY r.name, c.model;

-- Turns without a reward, and what the machine or the coder said.
CREATE VIEW v_faults AS
SELECT u.turn_id, u.run, u.group_ordinal, u.problem, u.member, u.turn, u.fault, c.error AS coder_error,
       e.attempt AS evaluation_attempts, e.failures AS evaluation_failures, e.detail AS evaluation_detail,
       u.settled_at
FROM v_turn u
JOIN turn ON turn.id = u.turn_id
LEFT JOIN coder_call c ON c.id = turn.coder_call_id
LEFT JOIN evaluation e ON e.id = turn.evaluation_id
WHERE u.fault IS NOT NULL;

CREATE VIEW v_step AS
SELECT r.name AS run, s.step, count(u.turn_id) AS samples,
       sum(CASE WHEN u.turn_id IS NOT NULL AND u.drop_reason IS NULL THEN 1 ELSE 0 END) AS trained,
       avg(CASE WHEN u.drop_reason = 'stale' THEN NULL ELSE t.reward END) AS mean_reward,
       avg(u."return") AS mean_return, v.path AS checkpoint, s.batch_hash, s.created_at, s.run_id
FROM train_step s
JOIN run r ON r.id = s.run_id
JOIN policy_version v ON v.id = s.policy_out_id
LEFT JOIN train_sample u ON u.run_id = s.run_id AND u.step = s.step
LEFT JOIN turn t ON t.id = u.turn_id
GROUP BY r.name, s.step, v.path, s.batch_hash, s.created_at, s.run_id;

CREATE VIEW v_run AS
SELECT r.name AS run, r.seed, r.code_version, r.created_at,
       (SELECT max(v.step) FROM policy_version v WHERE v.run_id = r.id) AS step,
       sum(CASE WHEN g.state = 'open' THEN 1 ELSE 0 END) AS groups_open,
       sum(CASE WHEN g.state = 'complete' THEN 1 ELSE 0 END) AS groups_complete,
       sum(CASE WHEN g.state = 'failed' THEN 1 ELSE 0 END) AS groups_failed,
       (SELECT count(*) FROM v_turn u WHERE u.run_id = r.id AND u.state = 'settled') AS turns,
       (SELECT count(*) FROM v_turn u WHERE u.run_id = r.id AND u.fault IS NOT NULL) AS faults
FROM run r
LEFT JOIN rollout_group g ON g.run_id = r.id
GROUP BY r.id, r.name, r.seed, r.code_version, r.created_at;

-- What each version of the policy achieved.
CREATE VIEW v_policy AS
SELECT run, policy_step, count(*) AS turns, avg(reward) AS mean_reward,
       avg(CASE WHEN outcome = 'correct' THEN 1.0 ELSE 0.0 END) AS share_correct,
       avg(CASE WHEN outcome IN ('compile_error', 'load_error') THEN 0.0 ELSE 1.0 END) AS share_compiled,
       avg(CASE WHEN outcome = 'correct' THEN speedup END) AS mean_speedup,
       max(CASE WHEN outcome = 'correct' THEN speedup END) AS best_speedup
FROM v_turn
WHERE reward IS NOT NULL
GROUP BY run, policy_step;

-- What lint and the run-time guards found, and verdicts that nobody should trust.
CREATE VIEW v_hacks AS
SELECT e.id AS evaluation_id, p.name AS problem, e.outcome, e.speedup, f.rule, f.severity, f.line,
       f.message, e.kernel_sha, e.finished_at
FROM evaluation e
JOIN problem p ON p.id = e.problem_id
LEFT JOIN finding f ON f.evaluation_id = e.id
WHERE f.id IS NOT NULL OR e.outcome IN ('hack', 'suspect');
