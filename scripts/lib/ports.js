'use strict';

const net = require('node:net');

/**
 * Free TCP ports on 127.0.0.1, all different. Held open together while they are chosen, so that the same one is not
 * given twice.
 *
 * @param {number} count
 * @returns {Promise<number[]>}
 */
async function freePorts(count) {
  const servers = await Promise.all(
    Array.from(
      { length: count },
      () =>
        new Promise((resolve, reject) => {
          const server = net.createServer();
          server.once('error', reject);
          server.listen(0, '127.0.0.1', () => resolve(server));
        }),
    ),
  );
  const ports = servers.map((server) => server.address().port);
  await Promise.all(servers.map((server) => new Promise((resolve) => server.close(resolve))));
  return ports;
}

/** @returns {Promise<number>} one free TCP port on 127.0.0.1 */
async function freePort() {
  const [port] = await freePorts(1);
  return port;
}

module.exports = { freePort, freePorts };
