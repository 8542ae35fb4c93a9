// What a newcomer sees first: `npm run demo` ends with one winner and one loser, and leaves nothing running.

import { execFile } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { promisify } from 'node:util';
import { ROOT } from '../../scripts/lib/package';

// n8n starts once more, and the node is built.
jest.setTimeout(240_000);

const MARK = `redis-lock-demo-test-${process.pid}`;

/** Pids of processes that carry our mark in their environment: the demo and everything below it. */
function marked(): string[] {
  return readdirSync('/proc').filter((pid) => {
    if (!/^\d+$/.test(pid)) return false;
    try {
      return readFileSync(`/proc/${pid}/environ`, 'utf8').includes(MARK);
    } catch {
      return false;
    }
  });
}

test('the demo shows one winner and one loser, and stops all that it started', async () => {
  // Its own Redis, and no shared list of processes: it must clean up by itself.
  const env: NodeJS.ProcessEnv = { ...process.env, NO_COLOR: '1', DEMO_MARK: MARK };
  delete env.REDIS_URL;
  delete env.REDIS_LOCK_PROCESSES;
  const { stdout } = await promisify(execFile)(process.execPath, ['scripts/demo.js', '--once'], {
    cwd: ROOT,
    env,
  });

  const lines = stdout.split('\n').filter((line) => /^ *\d+\.\d\d s {2}execution \d+ /.test(line));
  expect(lines.filter((line) => line.includes('asks for w4ingest:lock:reports'))).toHaveLength(2);
  expect(lines.filter((line) => line.includes(' wins '))).toHaveLength(1);
  expect(lines.filter((line) => line.includes('is told Busy: held by execution '))).toHaveLength(1);
  expect(lines.filter((line) => line.includes('releases the lock'))).toHaveLength(1);
  expect(stdout).toContain('One winner, one loser.');
  expect(marked()).toEqual([]);
});
