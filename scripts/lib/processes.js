'use strict';

// Every process that the scripts start is started here and ended here: by its own pid, and with the
// children that it started itself (npm starts compilers, n8n starts a task runner), which is why each one
// leads its own process group. Nothing may be left running, whichever way the script ends.

const { spawn } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { signalGroup, startMark, sweep } = require('./sweep');
const { until } = require('./wait');

/** @type {Map<number, import('node:child_process').ChildProcess>} */
const running = new Map();
const byeHandlers = new Set();
let watching = false;

// Test runners start processes in sandboxes of their own, whose exit handlers may never run. A folder with
// one file per pid lets the outermost script clean up for them.
const REGISTRY = 'REDIS_LOCK_PROCESSES';

function registryFile(pid) {
  const folder = process.env[REGISTRY];
  return folder ? path.join(folder, String(pid)) : undefined;
}

/**
 * Makes this script the one that cleans up after all processes below it, those of a test runner included: processes
 * that are still running and their temporary files. Called once by an outermost script; a second call, or one below
 * it, changes nothing.
 */
function superviseProcesses() {
  if (process.env[REGISTRY]) return;
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'redis-lock-'));
  const registry = path.join(folder, 'running');
  const temporary = path.join(folder, 'tmp');
  fs.mkdirSync(registry);
  fs.mkdirSync(temporary);
  process.env[REGISTRY] = registry;
  process.env.TMPDIR = temporary;
  onBye(() => sweep(folder));
  standBy(folder);
  endWithNpm();
}

/** Has somebody sweep up should this script be killed by SIGKILL. Needs nothing of our environment, and ends with us. */
function standBy(folder) {
  const sweeper = spawn(process.execPath, [path.join(__dirname, 'sweep.js'), folder], {
    detached: true,
    env: {},
    stdio: ['pipe', 'ignore', 'ignore'],
  });
  sweeper.unref();
  sweeper.stdin.unref();
}

/**
 * Under `npm run`, a shell stands between npm and this script. Who ends npm by its pid ends npm and that shell only, so
 * this script looks whether its parent is still the same.
 */
function endWithNpm() {
  if (process.env.npm_lifecycle_event === undefined) return;
  const { ppid } = process;
  const timer = setInterval(() => {
    if (process.ppid !== ppid) process.exit(143);
  }, 500);
  timer.unref();
}

function watch() {
  if (watching) return;
  watching = true;
  process.on('exit', () => {
    for (const pid of running.keys()) signalGroup(pid, 'SIGKILL');
    for (const handler of byeHandlers) handler();
  });
  for (const [signal, code] of [
    ['SIGINT', 130],
    ['SIGTERM', 143],
    ['SIGHUP', 129],
  ]) {
    // A script with its own way of stopping (the demo) has put its listener first and decides.
    if (process.listenerCount(signal) === 0) process.once(signal, () => process.exit(code));
  }
}

/**
 * Runs `handler` when this process ends, whichever way (not on SIGKILL). Synchronous work only.
 *
 * @param {() => void} handler
 */
function onBye(handler) {
  watch();
  byeHandlers.add(handler);
}

/**
 * Starts a process that leads its own group and is killed, with its children, when this script ends.
 *
 * @param {string} command
 * @param {string[]} args
 * @param {import('node:child_process').SpawnOptions} [options]
 * @returns {import('node:child_process').ChildProcess & { pid: number }}
 */
function start(command, args, options = {}) {
  watch();
  const child = spawn(command, args, { ...options, detached: true });
  const { pid } = child;
  if (pid !== undefined) {
    running.set(pid, child);
    const file = registryFile(pid);
    if (file) fs.writeFileSync(file, startMark(pid));
    child.once('exit', () => {
      running.delete(pid);
      // What the process itself left behind in its group goes with it.
      signalGroup(pid, 'SIGKILL');
      if (file) fs.rmSync(file, { force: true });
    });
  }
  return child;
}

/**
 * Ends a process started by {@link start}: politely first, by SIGKILL after the grace period.
 *
 * @param {import('node:child_process').ChildProcess} child
 * @param {{ signal?: NodeJS.Signals, graceMs?: number }} [options]
 */
async function stop(child, { signal = 'SIGTERM', graceMs = 10_000 } = {}) {
  const { pid } = child;
  if (pid === undefined || hasEnded(child)) return;
  if (signal === 'SIGKILL') signalGroup(pid, signal);
  else child.kill(signal);
  try {
    await until(`process ${pid} to end`, () => hasEnded(child), { timeoutMs: graceMs });
  } catch {
    signalGroup(pid, 'SIGKILL');
    await until(`process ${pid} to end after SIGKILL`, () => hasEnded(child), { timeoutMs: 10_000 });
  }
}

/** @param {import('node:child_process').ChildProcess} child */
function hasEnded(child) {
  return child.exitCode !== null || child.signalCode !== null;
}

/**
 * Runs a command to its end.
 *
 * @param {string} command
 * @param {string[]} args
 * @param {import('node:child_process').SpawnOptions & { quiet?: boolean }} [options] `quiet` keeps the output back and shows it in the error only
 * @returns {Promise<string>} what it wrote to stdout (when quiet)
 * @throws {Error} when it cannot be started or ends with anything but 0; `exitCode` is on the error
 */
function run(
  command,
  args,
  { quiet = false, stdio = quiet ? ['ignore', 'pipe', 'pipe'] : 'inherit', ...options } = {},
) {
  return new Promise((resolve, reject) => {
    const child = start(command, args, { ...options, stdio });
    let out = '';
    let all = '';
    child.stdout?.on('data', (chunk) => {
      out += chunk;
      all += chunk;
    });
    child.stderr?.on('data', (chunk) => {
      all += chunk;
    });
    child.once('error', reject);
    child.once('close', (code, signal) => {
      if (code === 0) return resolve(out);
      const tail = all.split('\n').slice(-200).join('\n');
      const error = new Error(`${command} ${args.join(' ')} ended with ${signal ?? code}\n${tail}`);
      reject(Object.assign(error, { exitCode: code ?? 1 }));
    });
  });
}

module.exports = { start, stop, run, hasEnded, onBye, superviseProcesses };
