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

-- These two join the tables themselves: SQLite would first build the whole of a view that is LEFT JOINed.
CREATE VIEW v_trajectory AS
SELECT t.id AS trajectory_id, r.name AS run, g.ordinal AS group_ordinal, p.name AS problem, t.member,
       t.state, count(u.id) AS turns, sum(u.reward) AS reward, count(u.fault) AS faults,
       max(CASE WHEN u.outcome = 'correct' THEN e.speedup END) AS best_speedup, t.group_id
FROM trajectory t
JOIN rollout_group g ON g.id = t.group_id
JOIN run r ON r.id = g.run_id
JOIN problem p ON p.id = g.problem_id
LEFT JOIN turn u ON u.trajectory_id = t.id
LEFT JOIN evaluation e ON e.id = u.evaluation_id
GROUP BY t.id, r.name, g.ordinal, p.name, t.member, t.state, t.group_id;

CREATE VIEW v_group AS
SELECT g.id AS group_id, r.name AS run, g.ordinal, p.name AS problem, g.state, g.size, g.consumed_step,
       count(u.id) AS turns, count(u.fault) AS faults, min(v.step) AS oldest_policy_step,
       avg(u.reward) AS mean_reward, min(u.reward) AS lowest_reward, max(u.reward) AS highest_reward,
       max(CASE WHEN u.outcome = 'correct' THEN e.speedup END) AS best_speedup,
       g.created_at, g.finished_at
FROM rollout_group g
JOIN run r ON r.id = g.run_id
JOIN problem p ON p.id = g.problem_id
LEFT JOIN trajectory t ON t.group_id = g.id
LEFT JOIN turn u ON u.trajectory_id = t.id
LEFT JOIN policy_version v ON v.id = u.policy_version_id
LEFT JOIN evaluation e ON e.id = u.evaluation_id
GROUP BY g.id, r.name, g.ordinal, p.name, g.state, g.size, g.consumed_step, g.created_at, g.finished_at;

-- The fastest correct kernel of every problem, run by run: placed by few columns, then joined with the rest.
CREATE VIEW v_best AS
SELECT u.run, u.suite, u.level, u.problem, u.speedup, u.speedup_low, u.speedup_high, u.baseline_ms, u.time_ms,
       u.suggestion, u.policy_step, u.kernel_sha, u.evaluation_id, u.turn_id, ranked.run_id, ranked.problem_id
FROM (SELECT u.id, g.run_id, g.problem_id,
             row_number() OVER (PARTITION BY g.run_id, g.problem_id ORDER BY e.speedup DESC, u.id) AS place
      FROM rollout_group g
      JOIN trajectory t ON t.group_id = g.id
      JOIN turn u ON u.trajectory_id = t.id
      JOIN evaluation e ON e.id = u.evaluation_id
      WHERE u.outcome = 'correct') ranked
JOIN v_turn u ON u.turn_id = ranked.id
WHERE ranked.place = 1;

-- The ten fastest correct kernels of every problem on every kind of device, over all runs; by their first verdict.
CREATE VIEW v_leaderboard AS
SELECT suite, level, problem, device, harness, place, speedup, speedup_low, speedup_high, baseline_ms,
       time_ms, kernel_sha, evaluation_id
FROM (SELECT p.suite, p.level, p.name AS problem, e.device, e.harness, e.speedup, e.speedup_low,
             e.speedup_high, e.baseline_ms, e.time_ms, e.kernel_sha, e.id AS evaluation_id,
             row_number() OVER (PARTITION BY e.problem_id, e.device, e.harness
                                ORDER BY e.speedup DESC, e.id) AS place
      FROM evaluation e JOIN problem p ON p.id = e.problem_id
      WHERE e.outcome = 'correct' AND e.round = 0) ranked
WHERE place <= 10;

-- Every kernel of a suggestion that has several: a bad coder spreads, a bad suggestion does not.
CREATE VIEW v_sample AS
SELECT s.turn_id, r.name AS run, g.ordinal AS group_ordinal, p.name AS problem, t.member, u.ordinal AS turn,
       s.sample, s.chosen, s.outcome, s.fault, s.reward, u.reward AS turn_reward, e.speedup, e.speedup_low,
       c.model, c.usd, c.error AS coder_error, s.kernel_sha, s.evaluation_id, s.coder_call_id, u.suggestion
FROM turn_sample s
JOIN turn u ON u.id = s.turn_id
JOIN trajectory t ON t.id = u.trajectory_id
JOIN rollout_group g ON g.id = t.group_id
JOIN run r ON r.id = g.run_id
JOIN problem p ON p.id = g.problem_id
LEFT JOIN evaluation e ON e.id = s.evaluation_id
LEFT JOIN coder_call c ON c.id = s.coder_call_id;

-- What a run paid itself, and what its calls on their way may cost: the two together stay below coder.max_usd.
CREATE VIEW v_budget AS
SELECT r.name AS run, sum(p.paid_usd) AS paid_usd, sum(p.reserved_usd) AS reserved_usd,
       sum(CASE WHEN p.reserved_usd > 0 THEN 1 ELSE 0 END) AS calls_on_their_way
FROM coder_payment p
JOIN run r ON r.id = p.run_id
GROUP BY r.name;

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
       sum(c.seconds) AS seconds, avg(c.seconds) AS mean_seconds, max(c.seconds) AS longest_seconds,
       sum(c.attempts) AS attempts
FROM (SELECT g.run_id, u.coder_call_id
      FROM turn u
      JOIN trajectory t ON t.id = u.trajectory_id
      JOIN rollout_group g ON g.id = t.group_id
      UNION
      SELECT g.run_id, s.coder_call_id
      FROM turn_sample s
      JOIN turn u ON u.id = s.turn_id
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
       coalesce(g.open, 0) AS groups_open, coalesce(g.complete, 0) AS groups_complete,
       coalesce(g.failed, 0) AS groups_failed, coalesce(played.turns, 0) AS turns,
       coalesce(played.faults, 0) AS faults
FROM run r
LEFT JOIN (SELECT run_id, sum(CASE WHEN state = 'open' THEN 1 ELSE 0 END) AS open,
                  sum(CASE WHEN state = 'complete' THEN 1 ELSE 0 END) AS complete,
                  sum(CASE WHEN state = 'failed' THEN 1 ELSE 0 END) AS failed
           FROM rollout_group GROUP BY run_id) g ON g.run_id = r.id
LEFT JOIN (SELECT g.run_id, count(*) AS turns, count(u.fault) AS faults
           FROM turn u
           JOIN trajectory t ON t.id = u.trajectory_id
           JOIN rollout_group g ON g.id = t.group_id
           WHERE u.state = 'settled' GROUP BY g.run_id) played ON played.run_id = r.id;

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

-- How often the policy's kernels cheated, version by version.
CREATE VIEW v_hack_rate AS
SELECT u.run, u.policy_step, count(*) AS judged,
       sum(CASE WHEN u.outcome = 'hack' THEN 1 ELSE 0 END) AS hacks,
       sum(CASE WHEN u.outcome = 'suspect' THEN 1 ELSE 0 END) AS suspects,
       count(f.evaluation_id) AS with_findings,
       avg(CASE WHEN u.outcome IN ('hack', 'suspect') THEN 1.0 ELSE 0.0 END) AS hack_rate
FROM v_turn u
LEFT JOIN (SELECT DISTINCT evaluation_id FROM finding) f ON f.evaluation_id = u.evaluation_id
WHERE u.outcome IS NOT NULL
GROUP BY u.run, u.policy_step;

-- How settled turns ended: with a verdict on the kernel, or with a fault of the machine or the coder.
CREATE VIEW v_outcomes AS
SELECT r.name AS run, CASE WHEN ended.fault IS NULL THEN 'verdict' ELSE 'fault' END AS source,
       coalesce(ended.fault, ended.outcome) AS kind, ended.turns,
       ended.turns * 1.0 / sum(ended.turns) OVER (PARTITION BY ended.run_id) AS share
FROM (SELECT g.run_id, u.fault, u.outcome, count(*) AS turns
      FROM turn u
      JOIN trajectory t ON t.id = u.trajectory_id
      JOIN rollout_group g ON g.id = t.group_id
      WHERE u.state = 'settled' GROUP BY g.run_id, u.fault, u.outcome) ended
JOIN run r ON r.id = ended.run_id;

-- Turns that an update looked at and did not learn from: stale, without signal, too like one another.
CREATE VIEW v_dropped AS
SELECT r.name AS run, s.step, s.drop_reason, count(*) AS samples
FROM train_sample s
JOIN run r ON r.id = s.run_id
WHERE s.drop_reason IS NOT NULL
GROUP BY r.name, s.step, s.drop_reason;

-- What was not paid again: answers and verdicts that several turns of a run share.
CREATE VIEW v_cache AS
SELECT r.name AS run, sum(used.calls) AS coder_turns, count(used.coder_call_id) AS coder_calls,
       sum(CASE WHEN used.calls > 0 THEN used.calls - 1 ELSE 0 END) AS coder_reused,
       sum((used.calls - 1) * c.usd) AS usd_saved, sum(used.verdicts) AS evaluated_turns,
       count(used.evaluation_id) AS evaluations,
       sum(CASE WHEN used.verdicts > 0 THEN used.verdicts - 1 ELSE 0 END) AS evaluations_reused
FROM (SELECT run_id, coder_call_id, NULL AS evaluation_id, count(*) AS calls, 0 AS verdicts
      FROM (SELECT g.run_id, u.coder_call_id
            FROM turn u
            JOIN trajectory t ON t.id = u.trajectory_id
            JOIN rollout_group g ON g.id = t.group_id
            WHERE u.coder_call_id IS NOT NULL
            UNION ALL
            SELECT g.run_id, s.coder_call_id
            FROM turn_sample s
            JOIN turn u ON u.id = s.turn_id
            JOIN trajectory t ON t.id = u.trajectory_id
            JOIN rollout_group g ON g.id = t.group_id
            WHERE s.coder_call_id IS NOT NULL AND s.chosen = 0) uses
      GROUP BY run_id, coder_call_id
      UNION ALL
      SELECT run_id, NULL, evaluation_id, 0, count(*)
      FROM (SELECT g.run_id, u.evaluation_id
            FROM turn u
            JOIN trajectory t ON t.id = u.trajectory_id
            JOIN rollout_group g ON g.id = t.group_id
            WHERE u.evaluation_id IS NOT NULL
            UNION ALL
            SELECT g.run_id, s.evaluation_id
            FROM turn_sample s
            JOIN turn u ON u.id = s.turn_id
            JOIN trajectory t ON t.id = u.trajectory_id
            JOIN rollout_group g ON g.id = t.group_id
            WHERE s.evaluation_id IS NOT NULL AND s.chosen = 0) uses
      GROUP BY run_id, evaluation_id) used
JOIN run r ON r.id = used.run_id
LEFT JOIN coder_call c ON c.id = used.coder_call_id
GROUP BY r.name;

-- Where time went, in seconds of work: what ran at the same time is added up.
CREATE VIEW v_time AS
SELECT r.name AS run, 'collect' AS stage, 'coder' AS work, count(*) AS n, sum(c.seconds) AS seconds
FROM (SELECT g.run_id, u.coder_call_id
      FROM turn u
      JOIN trajectory t ON t.id = u.trajectory_id
      JOIN rollout_group g ON g.id = t.group_id
      WHERE u.coder_call_id IS NOT NULL
      UNION
      SELECT g.run_id, s.coder_call_id
      FROM turn_sample s
      JOIN turn u ON u.id = s.turn_id
      JOIN trajectory t ON t.id = u.trajectory_id
      JOIN rollout_group g ON g.id = t.group_id
      WHERE s.coder_call_id IS NOT NULL) used
JOIN run r ON r.id = used.run_id
JOIN coder_call c ON c.id = used.coder_call_id
GROUP BY r.name
UNION ALL
SELECT r.name, 'evaluate', work.name, done.n, CASE WHEN work.name = 'build' THEN done.build_s ELSE done.run_s END
FROM (SELECT used.run_id, count(*) AS n, sum(e.build_s) AS build_s, sum(e.run_s) AS run_s
      FROM (SELECT g.run_id, u.evaluation_id
            FROM turn u
            JOIN trajectory t ON t.id = u.trajectory_id
            JOIN rollout_group g ON g.id = t.group_id
            WHERE u.evaluation_id IS NOT NULL
            UNION
            SELECT g.run_id, s.evaluation_id
            FROM turn_sample s
            JOIN turn u ON u.id = s.turn_id
            JOIN trajectory t ON t.id = u.trajectory_id
            JOIN rollout_group g ON g.id = t.group_id
            WHERE s.evaluation_id IS NOT NULL) used
      JOIN evaluation e ON e.id = used.evaluation_id
      WHERE e.outcome IS NOT NULL GROUP BY used.run_id) done
JOIN run r ON r.id = done.run_id
CROSS JOIN (SELECT 'build' AS name UNION ALL SELECT 'check and time') work;
