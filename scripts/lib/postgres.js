'use strict';

// A PostgreSQL of its own for n8n's queue mode: on 127.0.0.1 only, in a temporary folder, ended with the script.

const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { ensureProgram, which } = require('./debian');
const { freePort } = require('./ports');
const { start, stop, run, hasEnded, onBye } = require('./processes');
const { until, GiveUp } = require('./wait');

/** Where Debian puts each version. */
const VERSIONS = '/usr/lib/postgresql';

/** @returns {string | undefined} the path of `postgres`, with `initdb` beside it */
function findPostgres() {
  const versions = fs.existsSync(VERSIONS) ? fs.readdirSync(VERSIONS).sort((a, b) => Number(b) - Number(a)) : [];
  const found = versions.map((version) => path.join(VERSIONS, version, 'bin', 'postgres')).find((file) => fs.existsSync(file));
  const onPath = which('postgres');
  return found ?? (onPath && fs.realpathSync(onPath));
}

/** PostgreSQL refuses to run as root, so then it runs as the user that its package has made. */
function unprivileged() {
  if (process.getuid?.() !== 0) return {};
  const line = fs.readFileSync('/etc/passwd', 'utf8').split('\n').find((entry) => entry.startsWith('postgres:'));
  if (!line) throw new Error('PostgreSQL does not run as root, and there is no user "postgres".');
  const [, , uid, gid] = line.split(':').map(Number);
  return { uid, gid };
}

/**
 * Starts a PostgreSQL server that ends with this script.
 *
 * @returns {Promise<{ host: string, port: number, user: string, database: string, stop(): Promise<void> }>} no password is asked for
 */
async function startPostgres() {
  const postgres = await ensureProgram('postgresql', findPostgres, 'Install postgresql (version 13 or newer) and run this again.');
  const as = unprivileged();
  // Not below this script's own temporary folder, which nobody else may enter.
  const folder = fs.mkdtempSync(path.join(as.uid === undefined ? os.tmpdir() : '/tmp', 'redis-lock-postgres-'));
  const cleanUp = () => fs.rmSync(folder, { recursive: true, force: true });
  onBye(cleanUp);
  if (as.uid !== undefined) fs.chownSync(folder, as.uid, as.gid);
  const data = path.join(folder, 'data');
  const host = '127.0.0.1';
  const options = { ...as, cwd: folder, env: { PATH: process.env.PATH, LC_ALL: 'C' } };
  await run(path.join(path.dirname(postgres), 'initdb'), ['-D', data, '-U', 'postgres', '--auth=trust', '--no-sync'], { ...options, quiet: true });

  const port = await freePort();
  const settings = ['-D', data, '-p', String(port), '-h', host, '-k', folder, '-c', 'fsync=off', '-c', 'full_page_writes=off'];
  const child = start(postgres, settings, { ...options, stdio: ['ignore', 'pipe', 'pipe'] });
  let log = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (log = (log + chunk).slice(-4000)));
  await until(
    `PostgreSQL on port ${port}`,
    () => {
      if (hasEnded(child)) throw new GiveUp(`PostgreSQL ended while starting:\n${log}`);
      return log.includes('ready to accept connections');
    },
    { timeoutMs: 30_000, everyMs: 50 },
  );
  return {
    host,
    port,
    user: 'postgres',
    database: 'postgres',
    async stop() {
      // "Fast": it does not wait for those who are connected.
      await stop(child, { signal: 'SIGINT' });
      cleanUp();
    },
  };
}

module.exports = { startPostgres };
