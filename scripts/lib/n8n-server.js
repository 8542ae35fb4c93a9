'use strict';

// One n8n process with a user folder of its own (SQLite unless told otherwise, no outside calls), started and ended like
// any other process: a server, or a worker of queue mode.

const fs = require('node:fs');
const path = require('node:path');
const { start, stop, hasEnded } = require('./processes');
const { freePorts } = require('./ports');
const { npmEnvironment } = require('./npm');
const { until, GiveUp } = require('./wait');

const READY = { start: 'Editor is now accessible via', worker: 'Concurrency:' };
const START_LIMIT_MS = 180_000;

/**
 * Starts n8n and waits until it can be used.
 *
 * @param {object} options
 * @param {{ version: string, nodeHome: string, folder: string }} options.install from `ensureN8n`
 * @param {string} options.userFolder what it keeps between two starts
 * @param {'start' | 'worker'} [options.command] default: start
 * @param {number} [options.port] default: a free one
 * @param {NodeJS.ProcessEnv} [options.env] further settings
 * @returns {Promise<{ url: string, port: number, pid: number, userFolder: string, log(): string, signal(name: NodeJS.Signals): void, stop(): Promise<void>, kill(): Promise<void> }>}
 *   `stop` ends it in order, `kill` by SIGKILL
 * @throws {Error} with the end of its log, when it ends or is not ready in 180 s
 */
async function startN8n({ install, userFolder, command = 'start', port: wanted, env = {} }) {
  const [free, brokerPort] = await freePorts(2);
  const port = wanted ?? free;
  const logFile = path.join(userFolder, 'n8n.log');
  fs.mkdirSync(userFolder, { recursive: true });
  const output = fs.openSync(logFile, 'w');
  const child = start(
    path.join(install.nodeHome, 'bin', 'node'),
    [path.join(install.folder, 'node_modules', 'n8n', 'bin', 'n8n'), command],
    {
      cwd: userFolder,
      stdio: ['ignore', output, output],
      env: {
        ...withoutOuterSettings(npmEnvironment(install.nodeHome)),
        ...settings(userFolder, port, brokerPort),
        ...env,
      },
    },
  );
  fs.closeSync(output);
  const log = () => fs.readFileSync(logFile, 'utf8');
  try {
    await until(
      `n8n ${install.version} to start`,
      () => {
        if (hasEnded(child))
          throw new GiveUp(
            `n8n ${install.version} ended while starting (${child.signalCode ?? child.exitCode}):\n${log().slice(-4000)}`,
          );
        return log().includes(READY[command]);
      },
      { timeoutMs: START_LIMIT_MS, everyMs: 100 },
    );
  } catch (error) {
    await stop(child, { signal: 'SIGKILL' });
    throw error instanceof GiveUp ? error : new Error(`${error.message}\n${log().slice(-4000)}`);
  }
  return {
    url: `http://127.0.0.1:${port}`,
    port,
    pid: child.pid,
    userFolder,
    log,
    signal: (name) => child.kill(name),
    stop: () => stop(child, { graceMs: 15_000 }),
    kill: () => stop(child, { signal: 'SIGKILL' }),
  };
}

/** A developer's own n8n settings in the shell must not reach this server. */
function withoutOuterSettings(env) {
  return Object.fromEntries(
    Object.entries(env).filter(
      ([name]) => !/^(N8N_|DB_|EXECUTIONS_|QUEUE_|NODE_FUNCTION_|NODE_OPTIONS$|WEBHOOK_|JEST_)/.test(name),
    ),
  );
}

function settings(userFolder, port, brokerPort) {
  return {
    // A test runner says "test" here, with which n8n does not start.
    NODE_ENV: 'production',
    N8N_USER_FOLDER: userFolder,
    N8N_PORT: String(port),
    N8N_HOST: '127.0.0.1',
    N8N_LISTEN_ADDRESS: '127.0.0.1',
    // Each n8n process needs a broker port of its own.
    N8N_RUNNERS_BROKER_PORT: String(brokerPort),
    N8N_RUNNERS_ENABLED: 'true',
    N8N_ENCRYPTION_KEY: 'a-fixed-key-for-trying-things',
    // The cookie must work without https.
    N8N_SECURE_COOKIE: 'false',
    GENERIC_TIMEZONE: 'UTC',
    N8N_DIAGNOSTICS_ENABLED: 'false',
    N8N_VERSION_NOTIFICATIONS_ENABLED: 'false',
    N8N_PERSONALIZATION_ENABLED: 'false',
    N8N_TEMPLATES_ENABLED: 'false',
    N8N_HIRING_BANNER_ENABLED: 'false',
    N8N_DYNAMIC_BANNERS_ENABLED: 'false',
    N8N_ENFORCE_SETTINGS_FILE_PERMISSIONS: 'true',
  };
}

module.exports = { startN8n };
