'use strict';

// `npm run demo`, also as the first command after `git clone`: shows the lock at work in a real n8n, and leaves that
// n8n open to play with. Everything it starts ends with it; what it fetches stays in the cache for the next time.
//
//   --once  ends after the time line

const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { build, ensureDependencies } = require('./lib/dependencies');
const { OWNER, signIn } = require('./lib/n8n-api');
const { startN8n } = require('./lib/n8n-server');
const { ensureN8n, MAIN_VERSION } = require('./lib/n8n-versions');
const { installForN8n, packPackage, ROOT } = require('./lib/package');
const { superviseProcesses } = require('./lib/processes');
const { withProgress } = require('./lib/progress');
const { findRedis } = require('./lib/redis');
const { eventsOf, paint, timeline } = require('./lib/timeline');
const { until } = require('./lib/wait');

const EXAMPLE = path.join(ROOT, 'examples', 'first-lock.json');

/** n8n with the packed package in it, as a user would have it. */
async function startN8nWithPackage() {
  const install = await ensureN8n(MAIN_VERSION);
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'redis-lock-demo-'));
  await withProgress('Building the node', () => build({ quiet: true }));
  const { tarball } = await packPackage(folder);
  return await withProgress(`Starting n8n ${install.version} with the node`, async () => {
    await installForN8n(folder, tarball, install.nodeHome);
    return await startN8n({ install, userFolder: folder });
  });
}

/** What n8n's Redis credential asks for, from a URL. */
function credentialData(url) {
  const { hostname, port, username, password, pathname, protocol } = new URL(url);
  return {
    host: hostname,
    port: Number(port || 6379),
    user: decodeURIComponent(username),
    password: decodeURIComponent(password),
    database: Number(pathname.slice(1) || 0),
    ssl: protocol === 'rediss:',
  };
}

/** Imports the example and makes it live. */
async function importExample(api, redisUrl) {
  const credential = await api.createCredential({ name: 'Redis', type: 'redis', data: credentialData(redisUrl) });
  const workflow = JSON.parse(fs.readFileSync(EXAMPLE, 'utf8'));
  for (const node of workflow.nodes) {
    if (node.type === 'n8n-nodes-redis-lock.redisLock') node.credentials = { redis: credential };
  }
  const id = await api.createWorkflow(workflow);
  await api.activate(id);
  return {
    id,
    hook: `${api.url}/webhook/${workflow.nodes.find((node) => node.type === 'n8n-nodes-base.webhook').parameters.path}`,
  };
}

/** Two calls in the same moment, and what the two runs did. */
async function twoRuns(api, { id, hook }) {
  await Promise.all(['one', 'two'].map(() => fetch(hook, { method: 'POST' }).then((response) => response.text())));
  const finished = await until('both runs to end', async () => {
    const all = await api.executions(id);
    return all.length === 2 && all.every((one) => one.stoppedAt) && all;
  });
  return eventsOf(await Promise.all(finished.map((one) => api.execution(one.id))));
}

async function main() {
  const once = process.argv.includes('--once');
  superviseProcesses();
  await ensureDependencies();
  const redis = await findRedis();
  console.log(`Redis: ${redis.how}`);
  const server = await startN8nWithPackage();
  const api = await signIn(server.url);
  const example = await importExample(api, redis.url);

  console.log(`\n${paint('bold', 'Two runs of the example "First lock" at the same time:')}\n`);
  const events = await twoRuns(api, example);
  console.log(`${timeline(events).join('\n')}\n`);
  const count = (kind) => events.filter((event) => event.kind === kind).length;
  const asPromised = count('wins') === 1 && count('busy') === 1 && count('releases') === 1;
  console.log(
    asPromised ? paint('green', 'One winner, one loser.') : paint('red', 'That is not one winner and one loser.'),
  );

  if (once || !asPromised) {
    await server.stop();
    await redis.stop();
    process.exit(asPromised ? 0 : 1);
  }
  console.log(`
n8n is open at   ${paint('bold', `${server.url}/workflow/${example.id}`)}
sign in with     ${OWNER.email}   ${OWNER.password}
start a run      curl -X POST ${example.hook} -H 'content-type: application/json' -d '{"folder":"invoices"}'

Ctrl-C stops n8n${process.env.REDIS_URL ? '' : ' and Redis'}.`);

  await new Promise((resolve) => {
    for (const signal of ['SIGINT', 'SIGTERM']) {
      process.removeAllListeners(signal);
      process.once(signal, resolve);
    }
  });
  console.log('\nStopping …');
  await server.stop();
  await redis.stop();
  process.exit(0);
}

main().catch((error) => {
  console.error(`\n${error.message}`);
  process.exit(1);
});
