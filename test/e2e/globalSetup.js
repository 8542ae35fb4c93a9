'use strict';

// One Redis and one n8n for all end-to-end tests of a run, with the packed package installed as a user would.
// `npx jest --selectProjects e2e` alone is enough: what is missing is installed here (but the package must be built).

const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { ensureN8n, MAIN_VERSION } = require('../../scripts/lib/n8n-versions');
const { signIn } = require('../../scripts/lib/n8n-api');
const { startN8n } = require('../../scripts/lib/n8n-server');
const { installForN8n, packPackage, ROOT } = require('../../scripts/lib/package');
const { onBye, superviseProcesses } = require('../../scripts/lib/processes');
const { withProgress } = require('../../scripts/lib/progress');
const { startRedis } = require('../../scripts/lib/redis');

// Lets Code nodes of the test workflows read and write real files, and use the engine.
const serverEnv = (userFolder) => ({
  NODE_FUNCTION_ALLOW_BUILTIN: 'fs,path',
  NODE_FUNCTION_ALLOW_EXTERNAL: 'n8n-nodes-redis-lock',
  NODE_PATH: path.join(userFolder, '.n8n', 'nodes', 'node_modules'),
});

module.exports = async function globalSetup() {
  // A packed package to try in place of this tree's own build.
  const given = process.env.REDIS_LOCK_E2E_PACKAGE;
  if (!given && !fs.existsSync(path.join(ROOT, 'dist', 'nodes')))
    throw new Error('The package is not built: npm run build');
  superviseProcesses();
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'redis-lock-e2e-'));
  onBye(() => fs.rmSync(folder, { recursive: true, force: true }));

  const install = await ensureN8n(process.env.REDIS_LOCK_E2E_N8N ?? MAIN_VERSION);
  const userFolder = path.join(folder, 'n8n');
  const tarball = given ?? (await packPackage(folder)).tarball;
  const [redis, server] = await withProgress(`Starting Redis and n8n ${install.version}`, async () => {
    await installForN8n(userFolder, tarball, install.nodeHome);
    return await Promise.all([startRedis(), startN8n({ install, userFolder, env: serverEnv(userFolder) })]);
  });
  const { cookie } = await signIn(server.url);

  globalThis.redisLockE2e = { redis, server };
  process.env.REDIS_LOCK_E2E = JSON.stringify({
    install,
    tarball,
    folder,
    serverEnv: serverEnv(userFolder),
    n8n: { url: server.url, cookie },
    redis: { host: redis.host, port: redis.port },
  });
};
