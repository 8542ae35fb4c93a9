'use strict';

// Finds a Redis or gets one. A Redis that the scripts start listens on 127.0.0.1 only, keeps nothing on disk
// unless asked to, and ends with the script.

const fs = require('node:fs');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const { ensureProgram, mayInstall, which } = require('./debian');
const { start, stop, run, hasEnded, onBye } = require('./processes');
const { freePort } = require('./ports');
const { until, GiveUp } = require('./wait');

const SERVERS = ['redis-server', 'valkey-server'];
const IMAGE = 'redis:7-alpine';

/** @returns {string | undefined} the path of a Redis (or Valkey) server program: that of REDIS_SERVER, or one on the path */
function findRedisServer() {
  return process.env.REDIS_SERVER || SERVERS.map(which).find(Boolean);
}

/**
 * A Redis server program, installed by apt where there is none and it may be installed.
 *
 * @returns {Promise<string>} its path
 * @throws {Error} saying what to install, where this script may not
 */
async function ensureRedisServer() {
  return await ensureProgram(
    'redis-server',
    findRedisServer,
    'Install redis-server or valkey-server (version 7 or newer) and run this again.',
  );
}

/**
 * Starts a Redis server that ends with this script.
 *
 * @param {object} [options]
 * @param {number} [options.port] default: a free one
 * @param {string} [options.dir] working folder; default: a temporary one that is removed at stop
 * @param {string[]} [options.args] further settings, such as `['--maxmemory', '3mb']`
 * @returns {Promise<{ url: string, host: string, port: number, pid: number, dir: string, stop(): Promise<void>, kill(): Promise<void> }>}
 *   `stop` ends it in order, `kill` by SIGKILL; both keep a folder that the caller gave
 */
async function startRedis({ port, dir, args = [] } = {}) {
  const program = await ensureRedisServer();
  const host = '127.0.0.1';
  const folder = dir ?? fs.mkdtempSync(path.join(os.tmpdir(), 'redis-lock-redis-'));
  const cleanUp = () => {
    if (!dir) fs.rmSync(folder, { recursive: true, force: true });
  };
  if (!dir) onBye(cleanUp);

  // Somebody else may take a free port in the moment before Redis does; then another one is as good.
  for (let attempt = 1; ; attempt++) {
    const chosen = port ?? (await freePort());
    const settings = [
      '--bind',
      host,
      '--port',
      String(chosen),
      '--save',
      '',
      '--appendonly',
      'no',
      '--dir',
      folder,
      ...args,
    ];
    const child = start(program, settings, { stdio: ['ignore', 'pipe', 'pipe'] });
    const log = collect(child);
    try {
      await until(`Redis on port ${chosen}`, () => answers(child, host, chosen, log), {
        timeoutMs: 15_000,
        everyMs: 20,
      });
    } catch (error) {
      await stop(child, { signal: 'SIGKILL' });
      if (port === undefined && attempt < 3 && /in use/i.test(log())) continue;
      cleanUp();
      throw error;
    }
    const end = async (signal) => {
      await stop(child, { signal });
      cleanUp();
    };
    return {
      url: `redis://${host}:${chosen}`,
      host,
      port: chosen,
      pid: child.pid,
      dir: folder,
      stop: () => end('SIGTERM'),
      kill: () => end('SIGKILL'),
    };
  }
}

/** The last lines that a process wrote. */
function collect(child) {
  let text = '';
  const add = (chunk) => {
    text = (text + chunk).slice(-4000);
  };
  child.stdout?.on('data', add);
  child.stderr?.on('data', add);
  return () => text;
}

/** Whether that Redis answers PING; any answer counts, an authentication error too. */
function answers(child, host, port, log) {
  if (child && hasEnded(child)) throw new GiveUp(`Redis ended at once:\n${log()}`);
  return new Promise((resolve) => {
    const socket = net.connect({ host, port });
    const end = (value) => {
      socket.destroy();
      resolve(value);
    };
    socket.setTimeout(1000, () => end(false));
    socket.once('error', () => end(false));
    socket.once('connect', () => socket.write('PING\r\n'));
    // LOADING is a Redis that is not ready yet.
    socket.once('data', (data) => end(/^(\+PONG|-NOAUTH|-WRONGPASS|-NOPERM)/.test(String(data))));
  });
}

/** A Redis in Docker on a free port, where Docker works; else `undefined`. */
async function startRedisInDocker() {
  if (!which('docker')) return undefined;
  try {
    await run('docker', ['info'], { quiet: true });
    await withProgress(`Starting ${IMAGE} in Docker`, () => run('docker', ['pull', '-q', IMAGE], { quiet: true }));
  } catch {
    return undefined;
  }
  const host = '127.0.0.1';
  const port = await freePort();
  const name = `redis-lock-${process.pid}-${port}`;
  const child = start('docker', ['run', '--rm', '--name', name, '-p', `${host}:${port}:6379`, IMAGE], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const log = collect(child);
  onBye(() => {
    if (!hasEnded(child)) require('node:child_process').spawnSync('docker', ['rm', '-f', name]);
  });
  try {
    await until('Redis in Docker', () => answers(child, host, port, log), { timeoutMs: 60_000 });
  } catch {
    await stop(child);
    return undefined;
  }
  return {
    url: `redis://${host}:${port}`,
    host,
    port,
    pid: child.pid,
    dir: '',
    stop: () => stop(child),
    kill: () => stop(child),
  };
}

/**
 * Any Redis for a person to try things on: the one of `REDIS_URL`, else a local server program, else one in Docker,
 * else one installed by apt where that is allowed.
 *
 * @returns {Promise<{ how: string, url: string, stop(): Promise<void> }>} `how` says in words which one it is
 * @throws {Error} when `REDIS_URL` does not answer, or there is none and none can be had
 */
async function findRedis() {
  const { REDIS_URL: given } = process.env;
  if (given) {
    const { hostname, port, protocol } = new URL(given);
    // A TLS server does not answer a plain PING; the node itself will say what is wrong, if anything.
    if (protocol !== 'rediss:') {
      const probe = () => answers(undefined, hostname, Number(port || 6379), () => '');
      await until('an answer', probe, { timeoutMs: 5000 }).catch(() => {
        throw new Error(`No Redis answers at ${hostname}:${port || 6379}, which REDIS_URL names.`);
      });
    }
    return { how: `the Redis of REDIS_URL, at ${hostname}:${port || 6379}`, url: given, stop: async () => {} };
  }
  const program = findRedisServer();
  if (program) {
    const redis = await startRedis();
    return { how: `${program}, started on port ${redis.port}`, url: redis.url, stop: redis.stop };
  }
  const inDocker = await startRedisInDocker();
  if (inDocker) return { how: `${IMAGE} in Docker, on port ${inDocker.port}`, url: inDocker.url, stop: inDocker.stop };
  const redis = await startRedis();
  return {
    how: `redis-server, installed by apt-get just now, started on port ${redis.port}`,
    url: redis.url,
    stop: redis.stop,
  };
}

module.exports = { findRedisServer, ensureRedisServer, startRedis, findRedis };
