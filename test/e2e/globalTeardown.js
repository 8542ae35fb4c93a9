'use strict';

module.exports = async function globalTeardown() {
  const { redis, server } = globalThis.redisLockE2e ?? {};
  await server?.stop();
  await redis?.stop();
};
